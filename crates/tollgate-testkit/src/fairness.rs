//! How evenly something was shared, as a number.

/// Jain's index of the shares: 1 when all are equal, 1/n when one of n has everything.
///
/// ```
/// use tollgate_testkit::fairness::jain;
///
/// assert_eq!(jain(&[7, 7, 7, 7]), 1.0);
/// assert_eq!(jain(&[100, 0, 0, 0]), 0.25);
/// assert_eq!(jain(&[]), 1.0);
/// ```
#[expect(
    clippy::cast_precision_loss,
    reason = "a number for people and thresholds, never for a decision"
)]
pub fn jain(got: &[u64]) -> f64 {
    let sum: u128 = got.iter().map(|got| u128::from(*got)).sum();
    let squares: u128 = got.iter().map(|got| u128::from(*got).pow(2)).sum();
    if squares == 0 {
        return 1.0;
    }
    (sum as f64).powi(2) / (got.len() as f64 * squares as f64)
}
