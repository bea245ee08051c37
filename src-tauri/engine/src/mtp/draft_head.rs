//! Which rows of the output head a model drafts with: counted over all its requests, gathered once, completed for each request.

use std::{path::PathBuf, sync::Arc};

use super::{
    MtpHead, SubsetHead,
    draft_vocabulary::{Coverage, DraftVocabulary, RequestVocabulary, TokenCounts, default_size},
};
use crate::error::EngineError;

/// Tokens of a request's own prompt that are added, at most.
const PROMPT_TOKENS: usize = 512;
/// Requests after which the choice is looked at again.
const REFRESH_REQUESTS: usize = 32;
/// Share of the counted text outside the choice from which a new choice is worth gathering.
const REFRESH_SHARE: f64 = 0.02;

/// What all requests of one model share.
#[derive(Debug)]
pub struct DraftHeads {
    counts: TokenCounts,
    /// Where the counts are kept, and the tokenizer's fingerprint.
    file: Option<(PathBuf, u64)>,
    always: Vec<u32>,
    chosen: Option<(DraftVocabulary, Arc<SubsetHead>)>,
    requests: usize,
}

impl DraftHeads {
    /// For a vocabulary of `vocab` tokens; `always` are drafted whatever the counts say. `file`: where counts of earlier runs are, and
    /// the fingerprint of the tokenizer that they belong to.
    pub fn new(vocab: usize, always: Vec<u32>, file: Option<(PathBuf, u64)>) -> Self {
        let counts = match &file {
            Some((path, fingerprint)) => TokenCounts::load(path, vocab, *fingerprint),
            None => TokenCounts::new(vocab),
        };
        Self {
            counts,
            file,
            always,
            chosen: None,
            requests: 0,
        }
    }

    /// The rows for one request.
    ///
    /// # Errors
    /// When rows cannot be gathered.
    pub fn for_request(
        &mut self,
        head: &MtpHead,
        prompt: &[u32],
    ) -> Result<DraftHead, EngineError> {
        let stale = self.requests >= REFRESH_REQUESTS
            && self
                .chosen
                .as_ref()
                .is_some_and(|(ids, _)| self.counts.share_outside(ids) > REFRESH_SHARE);
        if stale {
            self.chosen = None;
        }
        let (ids, rows) = match &self.chosen {
            Some(chosen) => chosen.clone(),
            None => {
                let size = default_size(self.counts.vocab());
                let ids = self.counts.choose(size, &self.always);
                let rows = Arc::new(head.subset(ids.ids())?);
                self.requests = 0;
                self.chosen.insert((ids, rows)).clone()
            }
        };
        let vocabulary = ids.for_request(prompt, PROMPT_TOKENS);
        let extra = match vocabulary.extra() {
            [] => None,
            extra => Some(head.subset(extra)?),
        };
        Ok(DraftHead {
            whole: ids.is_whole(),
            vocabulary,
            rows,
            extra,
            coverage: Coverage::default(),
            merged: Vec::new(),
        })
    }

    /// Counts the tokens of a finished request, and keeps the counts on disk now and then.
    pub fn count(&mut self, prompt: &[u32], answer: &[u32]) {
        self.counts.add_prompt(prompt);
        self.counts.add_generated(answer);
        self.requests += 1;
        if self.requests.is_multiple_of(REFRESH_REQUESTS) {
            self.save();
        }
    }

    fn save(&self) {
        if let Some((path, fingerprint)) = &self.file
            && let Err(error) = self.counts.save(path, *fingerprint)
        {
            tracing::warn!(path = %path.display(), %error, "token counts could not be kept");
        }
    }
}

impl Drop for DraftHeads {
    fn drop(&mut self) {
        if self.requests > 0 {
            self.save();
        }
    }
}

/// The rows that one request drafts with.
#[derive(Debug)]
pub struct DraftHead {
    vocabulary: RequestVocabulary,
    rows: Arc<SubsetHead>,
    extra: Option<SubsetHead>,
    coverage: Coverage,
    merged: Vec<f32>,
    whole: bool,
}

impl DraftHead {
    /// Whether the whole vocabulary drafts better for now.
    pub fn wants_whole(&self) -> bool {
        self.whole || self.coverage.wants_whole()
    }

    /// Takes in a token of the answer.
    pub fn observe(&mut self, token: u32) {
        self.coverage.observe(self.vocabulary.contains(token));
    }

    /// The ids, ascending, and their logits from a hidden state `[1, hidden size]` of the MTP head.
    ///
    /// # Errors
    /// When the device fails.
    pub fn logits(
        &mut self,
        hidden: &candle_core::Tensor,
    ) -> Result<(&[u32], &mut [f32]), EngineError> {
        let row = |rows: &SubsetHead| -> Result<Vec<f32>, EngineError> {
            Ok(rows.logits(hidden)?.flatten_all()?.to_vec1()?)
        };
        let base = row(&self.rows)?;
        let extra = match &self.extra {
            Some(extra) => row(extra)?,
            None => Vec::new(),
        };
        if !self.vocabulary.merge(&base, &extra, &mut self.merged) {
            return Err(EngineError::Compute(
                "a draft vocabulary's logits have the wrong length".into(),
            ));
        }
        Ok((self.vocabulary.ids(), &mut self.merged))
    }
}
