//! `FairShare`: divides an amount by weight among participants with different demands.
//!
//! No participant gets more than its demand, and the others divide the rest (max-min fairness, or
//! water-filling). Source: Bertsekas and Gallager, Data Networks, 6.5.2.

#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareDemand {
    pub(crate) of: u64,
    pub(crate) weight: u64,
}

/// Share of a resource (depth or service of a drive) for each unit of weight, as the fraction
/// `amount` / `weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FairShare {
    amount: u64,
    weight: u64,
}

impl FairShare {
    /// Divides `amount` of a resource among participants by weight, without regard to their
    /// demands.
    pub(crate) fn even(amount: u64, wants: impl Iterator<Item = ShareDemand>) -> FairShare {
        FairShare { amount, weight: wants.map(|want| want.weight).sum() }
    }

    /// Divides `amount` of a resource by weight, but gives no participant more than its demand.
    /// Returns the share per unit of weight for participants that get less than their demand.
    /// Returns `None` if all demands are met.
    pub(crate) fn of(
        amount: u64,
        wants: impl Iterator<Item = ShareDemand> + Clone,
    ) -> Option<FairShare> {
        let mut level = FairShare::even(amount, wants.clone());
        loop {
            let mut next = FairShare { amount, weight: 0 };
            for want in wants.clone() {
                match want.of <= level.part(want.weight) {
                    true => next.amount = next.amount.saturating_sub(want.of),
                    false => next.weight += want.weight,
                }
            }
            match next {
                FairShare { weight: 0, .. } => return None,
                _ if next == level => return Some(level),
                _ => level = next,
            }
        }
    }

    pub(crate) fn part(self, weight: u64) -> u64 {
        let part = u128::from(self.amount) * u128::from(weight) / u128::from(self.weight.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn parts(amount: u64, wants: &[(u64, u64)]) -> Vec<u64> {
        let all = wants.iter().map(|(of, weight)| ShareDemand { of: *of, weight: *weight });
        let level = FairShare::of(amount, all.clone());
        all.map(|want| level.map_or(want.of, |level| want.of.min(level.part(want.weight))))
            .collect()
    }

    #[test]
    fn what_one_leaves_goes_to_the_others_by_weight() {
        assert_eq!(parts(40, &[(32, 100), (32, 400)]), [8, 32]);
        assert_eq!(parts(30, &[(32, 100), (32, 400)]), [6, 24]);
        assert_eq!(parts(30, &[(1, 100), (256, 100), (256, 200)]), [1, 9, 19]);
        assert_eq!(parts(100, &[(1, 100), (9, 100), (50, 200)]), [1, 9, 50]);
        // Two rounds: the second participant's demand is met only with what the first one leaves.
        assert_eq!(parts(90, &[(10, 1), (35, 1), (80, 1)]), [10, 35, 45]);
        assert_eq!(parts(7, &[]), []);
    }
}
