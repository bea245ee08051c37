//! Which tokens the draft head looks at.
//!
//! The head shares the model's LM head, whose rows are most of a draft step's work when the vocabulary is large (248,320 rows in
//! Qwen3.5). Nearly all text consists of a small part of the vocabulary, so the head may score only the rows of the tokens that
//! this user's texts use most. Verification always looks at the whole vocabulary: a token that is left out can never be drafted, but
//! it is answered all the same.
//!
//! - [`TokenCounts`] gathers how often each token occurs, older traffic fading, and is kept on disk.
//! - [`DraftVocabulary`] is a choice made from it: the most counted tokens; among equals (all of them, at first) the lower id, as
//!   a BPE tokenizer numbers its tokens in the order of its merges, most frequent pair first (Sennrich et al. 2016).
//! - [`RequestVocabulary`] adds a request's own rare tokens: names and identifiers of the prompt come back in its answer.
//! - [`Coverage`] watches how many verified tokens the choice misses, and says when the whole vocabulary drafts better.

use std::{cmp::Reverse, collections::HashSet, sync::Arc};

mod file;
#[cfg(test)]
mod tests;

/// The smallest choice: below, the rest of a draft step outweighs its rows.
pub const LEAST_TOKENS: usize = 8192;
/// The default choice is the vocabulary's size divided by this.
pub const DEFAULT_DIVISOR: usize = 8;
/// What a token of a prompt counts, next to 1 for a generated one. The head predicts answers; prompts are ten to a hundred
/// times as long, mostly say the same again in each turn, and tell less of what answers are made of.
const PROMPT_WEIGHT: f64 = 0.05;
/// Counted tokens after which earlier counts weigh half: a few weeks of daily use.
const HALF_LIFE: f64 = 1_000_000.0;
/// The weight of a new token at which all counts are scaled down. Only keeps numbers small.
const LARGEST_UNIT: f64 = 1024.0;

/// How many tokens a draft vocabulary has by default: an eighth of `vocab`, at least [`LEAST_TOKENS`], never more than there are.
pub fn default_size(vocab: usize) -> usize {
    (vocab / DEFAULT_DIVISOR).max(LEAST_TOKENS).min(vocab)
}

/// How often each token of a vocabulary occurred in this user's texts, older texts faded.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenCounts {
    /// By token, in units of `unit`.
    counts: Vec<f32>,
    total: f64,
    /// The weight that one generated token has now. It grows instead of all counts shrinking.
    unit: f64,
}

impl TokenCounts {
    /// No counts yet, for `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Self {
            counts: vec![0.0; vocab],
            total: 0.0,
            unit: 1.0,
        }
    }

    /// The tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.counts.len()
    }

    /// Counts a prompt's tokens. Those that a prefix cache already held were counted with an earlier request: leave them out.
    pub fn add_prompt(&mut self, tokens: &[u32]) {
        self.add(tokens, PROMPT_WEIGHT);
    }

    /// Counts generated tokens.
    pub fn add_generated(&mut self, tokens: &[u32]) {
        self.add(tokens, 1.0);
    }

    fn add(&mut self, tokens: &[u32], weight: f64) {
        for &token in tokens {
            // Ids beyond the vocabulary (a padded embedding's) have no count.
            if let Some(count) = self.counts.get_mut(token as usize) {
                let added = weight * self.unit;
                *count += added as f32;
                self.total += added;
                self.unit *= (weight * std::f64::consts::LN_2 / HALF_LIFE).exp();
            }
            if self.unit > LARGEST_UNIT {
                self.normalise();
            }
        }
    }

    /// Makes the unit 1.
    fn normalise(&mut self) {
        let scale = 1.0 / self.unit;
        for count in &mut self.counts {
            *count = (f64::from(*count) * scale) as f32;
        }
        // Summed anew: roundings do not pile up.
        self.total = self.counts.iter().map(|&count| f64::from(count)).sum();
        self.unit = 1.0;
    }

    /// Generated tokens' worth of what was counted and has not faded.
    pub fn weight(&self) -> f64 {
        self.total / self.unit
    }

    /// The share of the counted text that `vocabulary` misses, 0 to 1; 0 when nothing was counted.
    pub fn share_outside(&self, vocabulary: &DraftVocabulary) -> f64 {
        if self.total <= 0.0 {
            return 0.0;
        }
        let inside: f64 = vocabulary
            .ids()
            .iter()
            .filter_map(|&token| self.counts.get(token as usize))
            .map(|&count| f64::from(count))
            .sum();
        (1.0 - inside / self.total).clamp(0.0, 1.0)
    }

    /// Chooses the `size` most counted tokens, the lower id among equals, and all of `always` (stop tokens, marks of reasoning and
    /// tool calls), which come first. Ids beyond the vocabulary are left out.
    pub fn choose(&self, size: usize, always: &[u32]) -> DraftVocabulary {
        let vocab = self.counts.len();
        let mut inside = vec![false; vocab];
        let mut ids: Vec<u32> = Vec::with_capacity(size.min(vocab));
        for &token in always {
            if let Some(inside) = inside.get_mut(token as usize)
                && !*inside
            {
                *inside = true;
                ids.push(token);
            }
        }
        let left = size.saturating_sub(ids.len());
        // Non-negative floats are ordered as their bits are.
        let mut others: Vec<(Reverse<u32>, u32)> = (0..)
            .zip(&self.counts)
            .filter(|&(token, _)| !inside[token as usize])
            .map(|(token, count): (u32, _)| (Reverse(count.to_bits()), token))
            .collect();
        if left < others.len() {
            if left > 0 {
                others.select_nth_unstable(left - 1);
            }
            others.truncate(left);
        }
        ids.extend(others.iter().map(|&(_, token)| token));
        DraftVocabulary::new(ids, vocab)
    }
}

/// The tokens that a draft head looks at. A clone shares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftVocabulary {
    ids: Arc<[u32]>,
    /// One bit a token.
    members: Arc<[u64]>,
    vocab: usize,
}

impl DraftVocabulary {
    /// A choice of tokens below `vocab`, in any order; others and repetitions are left out.
    pub fn new(mut ids: Vec<u32>, vocab: usize) -> Self {
        ids.retain(|&token| (token as usize) < vocab);
        ids.sort_unstable();
        ids.dedup();
        let mut members = vec![0_u64; vocab.div_ceil(64)];
        for &token in &ids {
            members[token as usize / 64] |= 1 << (token % 64);
        }
        Self {
            ids: ids.into(),
            members: members.into(),
            vocab,
        }
    }

    /// The tokens, ascending: the LM head's rows to gather, and the ids of the logits that they give.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Whether this is the whole vocabulary, so that nothing need be gathered.
    pub fn is_whole(&self) -> bool {
        self.ids.len() == self.vocab
    }

    /// Whether a token can be drafted.
    pub fn contains(&self, token: u32) -> bool {
        self.members
            .get(token as usize / 64)
            .is_some_and(|bits| bits >> (token % 64) & 1 == 1)
    }

    /// The choice for one request: these tokens, and up to `most` distinct ones of its `prompt` that are not among them, the latest
    /// in the prompt first. A few hundred rows cost next to nothing.
    pub fn for_request(&self, prompt: &[u32], most: usize) -> RequestVocabulary {
        let mut seen = HashSet::new();
        let mut extra: Vec<u32> = prompt
            .iter()
            .rev()
            .copied()
            .filter(|&token| (token as usize) < self.vocab && !self.contains(token))
            .filter(|&token| seen.insert(token))
            .take(most)
            .collect();
        extra.sort_unstable();
        RequestVocabulary::new(self.clone(), extra)
    }
}

/// A [`DraftVocabulary`] with a request's own tokens. The base's rows are gathered once for all requests, the extra ones for this one.
#[derive(Clone, Debug)]
pub struct RequestVocabulary {
    base: DraftVocabulary,
    /// Ascending, none in the base.
    extra: Vec<u32>,
    /// Both, ascending.
    ids: Vec<u32>,
}

impl RequestVocabulary {
    fn new(base: DraftVocabulary, extra: Vec<u32>) -> Self {
        let mut ids = [base.ids(), &extra].concat();
        ids.sort_unstable();
        Self { base, extra, ids }
    }

    /// All tokens, ascending.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The tokens that the request adds, ascending.
    pub fn extra(&self) -> &[u32] {
        &self.extra
    }

    /// Whether a token can be drafted.
    pub fn contains(&self, token: u32) -> bool {
        self.base.contains(token) || self.extra.binary_search(&token).is_ok()
    }

    /// Brings a row of the base's logits and one of the extra tokens' into the order of [`Self::ids`]. `false`, and `merged` empty, when
    /// a row has another length than its tokens.
    pub fn merge(&self, base: &[f32], extra: &[f32], merged: &mut Vec<f32>) -> bool {
        merged.clear();
        if base.len() != self.base.ids.len() || extra.len() != self.extra.len() {
            return false;
        }
        merged.reserve(self.ids.len());
        let mut from = 0;
        for (token, logit) in self.extra.iter().zip(extra) {
            let to = from + self.base.ids[from..].partition_point(|id| id < token);
            merged.extend_from_slice(&base[from..to]);
            merged.push(*logit);
            from = to;
        }
        merged.extend_from_slice(&base[from..]);
        true
    }
}

/// When a choice of tokens costs more acceptance than it saves time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoverageConstants {
    /// Above this share of verified tokens outside the choice, the whole vocabulary drafts better. Each such token ends a run, which
    /// costs about its share of the speed; the smaller head saves 5 to 10 % of a cycle.
    pub most_outside: f64,
    /// Below this share the choice is used again. Well under the other, so that a text between them does not flap.
    pub few_outside: f64,
    /// Share by which each token fades the earlier ones: about the last 100 tokens count, a passage.
    pub decay: f64,
    /// Tokens before anything is concluded: one rare name in the first sentence is no trend.
    pub least_tokens: u32,
}

impl Default for CoverageConstants {
    fn default() -> Self {
        Self {
            most_outside: 0.08,
            few_outside: 0.03,
            decay: 0.01,
            least_tokens: 48,
        }
    }
}

/// Follows, in one sequence, how many of the answer's tokens a draft vocabulary misses.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    constants: CoverageConstants,
    /// Faded counts.
    outside: f64,
    weight: f64,
    tokens: u32,
    whole: bool,
}

impl Coverage {
    /// Nothing seen yet.
    pub fn new(constants: CoverageConstants) -> Self {
        Self {
            constants,
            ..Self::default()
        }
    }

    /// Takes in a verified token of the answer, and whether the chosen tokens include it. Also while the whole vocabulary drafts.
    pub fn observe(&mut self, inside: bool) {
        let c = self.constants;
        let keep = 1.0 - c.decay;
        self.outside = self.outside * keep + f64::from(u8::from(!inside));
        self.weight = self.weight * keep + 1.0;
        self.tokens = self.tokens.saturating_add(1);
        if self.tokens >= c.least_tokens {
            let limit = if self.whole {
                c.few_outside
            } else {
                c.most_outside
            };
            self.whole = self.share_outside() > limit;
        }
    }

    /// The share of the latest tokens that were outside, 0 to 1.
    pub fn share_outside(&self) -> f64 {
        if self.weight > 0.0 {
            self.outside / self.weight
        } else {
            0.0
        }
    }

    /// Whether the head should look at the whole vocabulary for now.
    pub fn wants_whole(&self) -> bool {
        self.whole
    }
}
