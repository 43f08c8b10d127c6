//! Counts over a list of ascending times: the peak in any span, and the number in each column.

use std::time::Duration;

use tollgate_core::Timestamp;

/// The most times in any half-open span `[t, t + window)`, exactly.
///
/// ```
/// use core::time::Duration;
/// use tollgate_cli::simulate::tally::peak_in_window;
/// use tollgate_core::Timestamp;
///
/// let times = [0, 60, 100, 159].map(Timestamp::from_millis);
/// // 0 and 100 are a whole window apart and never in the same one; 60, 100 and 159 are.
/// assert_eq!(peak_in_window(&times, Duration::from_millis(100)), 3);
/// ```
pub fn peak_in_window(times: &[Timestamp], window: Duration) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while first < last && *time - times[first] >= window {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most
}

/// The number of times in each of `columns` half-open columns of `width` nanoseconds, from the origin on. Times
/// beyond the last column are not counted. A width of 0 counts as 1.
pub fn per_column(times: &[Timestamp], width: u128, columns: usize) -> Vec<usize> {
    let mut counts = vec![0; columns];
    for time in times {
        let column = u128::from(time.as_nanos()) / width.max(1);
        if let Some(count) = usize::try_from(column)
            .ok()
            .and_then(|at| counts.get_mut(at))
        {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(millis: &[u64], window: u64, most: usize) {
        let times: Vec<_> = millis.iter().copied().map(Timestamp::from_millis).collect();
        assert_eq!(
            peak_in_window(&times, Duration::from_millis(window)),
            most,
            "{millis:?}"
        );
    }

    #[test]
    fn a_peak_counts_half_open_spans() {
        check(&[], 100, 0);
        check(&[7], 100, 1);
        check(&[0, 99], 100, 2);
        check(&[0, 100], 100, 1);
        check(&[0, 100, 199, 200], 100, 2);
        check(&[5, 5, 5, 300, 300], 100, 3);
        check(&[0, 50, 99, 120, 140, 149, 240], 100, 5);
    }

    #[test]
    fn a_peak_agrees_with_counting_from_every_start() {
        // The steps don't divide the window, so that no span is full by accident.
        let times: Vec<_> = (0..200_u64)
            .map(|k| Timestamp::from_millis(k * k % 37 + k * 13))
            .collect();
        let mut sorted = times;
        sorted.sort();
        let window = Duration::from_millis(100);
        let naive = sorted
            .iter()
            .map(|&start| {
                let inside = |time: &&Timestamp| **time >= start && **time - start < window;
                sorted.iter().filter(inside).count()
            })
            .max();
        assert_eq!(Some(peak_in_window(&sorted, window)), naive);
    }

    #[test]
    fn columns_are_half_open() {
        let times = [0, 99, 100, 250, 300].map(Timestamp::from_millis);
        let width = 100_000_000;
        assert_eq!(per_column(&times, width, 3), [2, 1, 1]);
        assert_eq!(per_column(&times, width, 4), [2, 1, 1, 1]);
    }
}
