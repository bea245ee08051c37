//! The distribution that a token is drawn from, as speculative decoding needs it.

use super::softmax::pick_index;

/// Tokens that passed every filter, with probabilities that add up to 1.
///
/// Held in ascending token order: a probability is found by bisection, two distributions are subtracted in one walk, and
/// an unfiltered vocabulary need not be sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilteredDistribution {
    entries: Vec<(u32, f32)>,
}

impl FilteredDistribution {
    /// All mass on one token: what greedy decoding draws from.
    pub fn certain(token: u32) -> Self {
        Self {
            entries: vec![(token, 1.0)],
        }
    }

    /// Makes this [`Self::certain`], keeping its memory.
    pub fn set_certain(&mut self, token: u32) {
        self.entries.clear();
        self.entries.push((token, 1.0));
    }

    /// Takes over (token, weight) pairs in ascending token order, with weights more than 0 that add up to `total`.
    pub(super) fn set(&mut self, weights: impl Iterator<Item = (u32, f32)>, total: f64) {
        self.entries.clear();
        self.entries
            .extend(weights.map(|(token, weight)| (token, (f64::from(weight) / total) as f32)));
    }

    /// (token, probability) in ascending token order. Empty only for a default value that was never filled.
    pub fn entries(&self) -> &[(u32, f32)] {
        &self.entries
    }

    /// (token, probability), most probable first, the lowest token first among equals. Sorts: meant for display and tests.
    pub fn sorted(&self) -> Vec<(u32, f32)> {
        let mut sorted = self.entries.clone();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        sorted
    }

    /// The probability of drawing `token`; 0 for one that the filters dropped.
    pub fn probability(&self, token: u32) -> f32 {
        match self.entries.binary_search_by_key(&token, |entry| entry.0) {
            Ok(place) => self.entries[place].1,
            Err(_) => 0.0,
        }
    }

    /// The token at the fraction `u` (in [0, 1)) of the mass. `None` only for an empty distribution.
    pub fn pick(&self, u: f64) -> Option<u32> {
        let probabilities = || self.entries.iter().map(|entry| entry.1);
        // The rounded probabilities add up to almost 1; their own sum keeps the last token's share exact.
        let total: f64 = probabilities().map(f64::from).sum();
        let place = pick_index(probabilities(), u * total);
        self.entries.get(place as usize).map(|entry| entry.0)
    }

    /// Turns the target's distribution `p` into the residual `norm(max(0, p - q))` to draw from after a token drafted from `q`
    /// was refused (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1).
    ///
    /// With nothing left (`p` equal to `q` up to rounding, where a refusal is itself a rounding error), `p` stays as it is.
    pub fn subtract(&mut self, q: &Self) {
        let above = |token: u32, p: f32, q: &mut &[(u32, f32)]| -> f32 {
            while let [first, rest @ ..] = *q
                && first.0 < token
            {
                *q = rest;
            }
            match *q {
                [first, ..] if first.0 == token => (p - first.1).max(0.0),
                _ => p,
            }
        };
        let mut walk = q.entries.as_slice();
        let left = |&(token, p): &(u32, f32)| f64::from(above(token, p, &mut walk));
        let total: f64 = self.entries.iter().map(left).sum();
        if total <= 0.0 {
            return;
        }
        let mut walk = q.entries.as_slice();
        self.entries.retain_mut(|(token, p)| {
            *p = (f64::from(above(*token, *p, &mut walk)) / total) as f32;
            *p > 0.0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[(u32, f32)]) -> FilteredDistribution {
        FilteredDistribution {
            entries: entries.to_vec(),
        }
    }

    #[test]
    fn probabilities_are_found_and_sorted() {
        let p = of(&[(2, 0.25), (5, 0.5), (9, 0.25)]);
        assert_eq!(
            [0, 2, 5, 9, 10].map(|token| p.probability(token)),
            [0.0, 0.25, 0.5, 0.25, 0.0]
        );
        assert_eq!(p.sorted(), [(5, 0.5), (2, 0.25), (9, 0.25)]);
        assert_eq!(FilteredDistribution::certain(3).entries(), [(3, 1.0)]);
    }

    #[test]
    fn a_pick_follows_the_cumulative_mass() {
        let p = of(&[(2, 0.25), (5, 0.5), (9, 0.25)]);
        let picks = [0.0, 0.24, 0.26, 0.74, 0.76, 0.999].map(|u| p.pick(u));
        assert_eq!(picks, [2, 2, 5, 5, 9, 9].map(Some));
        assert_eq!(FilteredDistribution::default().pick(0.5), None);
    }

    #[test]
    fn the_residual_is_what_the_draft_under_weights() {
        let mut p = of(&[(1, 0.5), (2, 0.25), (4, 0.25)]);
        p.subtract(&of(&[(0, 0.25), (1, 0.25), (2, 0.5)]));
        assert_eq!(p.entries(), [(1, 0.5), (4, 0.5)]);

        let mut disjoint = of(&[(1, 0.5), (3, 0.5)]);
        disjoint.subtract(&FilteredDistribution::certain(2));
        assert_eq!(disjoint.entries(), [(1, 0.5), (3, 0.5)]);

        let mut refused = of(&[(1, 0.75), (3, 0.25)]);
        refused.subtract(&FilteredDistribution::certain(1));
        assert_eq!(refused.entries(), [(3, 1.0)]);
    }

    #[test]
    fn an_empty_residual_leaves_the_target_distribution() {
        let mut p = of(&[(1, 0.5), (2, 0.5)]);
        p.subtract(&p.clone());
        assert_eq!(p, of(&[(1, 0.5), (2, 0.5)]));
    }
}
