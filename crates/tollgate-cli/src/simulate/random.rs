//! A small random generator of our own, so that a seed gives the same traffic in every release.

/// SplitMix64: one word of state, every seed is good.
#[derive(Clone, Debug)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An exponential variate of mean 1: the gap between two arrivals that know nothing of each
    /// other.
    pub(super) fn exponential(&mut self) -> f64 {
        // In (0, 1], so that the logarithm is finite.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -uniform.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        // The published first outputs for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn exponential_gaps_have_mean_and_variance_1() {
        let mut random = SplitMix64::new(1);
        let gaps: Vec<f64> = (0..100_000).map(|_| random.exponential()).collect();
        let mean = gaps.iter().sum::<f64>() / 1e5;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(gaps.iter().all(|gap| *gap >= 0.0));
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }
}
