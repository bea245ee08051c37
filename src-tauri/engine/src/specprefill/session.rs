//! Sparse sessions: the cache of a sparse answer, kept for the next turn of the same conversation.

use crate::{
    cache::{CacheError, SequenceCache, SequenceMark},
    error::EngineError,
};

/// Tokens before a prompt's end at which a session can be taken up again: templates write the beginning of an answer otherwise than its
/// record in the next turn's prompt, so the last few tokens of a prompt often do not come back.
pub const RESUME_MARGIN: usize = 16;

/// The cache of one sparse answer.
#[derive(Debug)]
pub struct SparseSession {
    /// Unique name of the model.
    pub model: String,
    /// The prompt's and the answer's tokens, whether kept or not.
    pub tokens: Vec<u32>,
    /// What the model holds of them.
    pub cache: SequenceCache,
    /// Places to go back to, in order: before the prompt's last tokens, at its end.
    pub marks: Vec<SequenceMark>,
    /// The least number of tokens that a prompt must share to be a continuation.
    pub least: usize,
}

/// A session taken up: its cache stands at the end of what the new prompt shares with it.
#[derive(Debug)]
pub struct ResumedSession {
    /// The cache.
    pub cache: SequenceCache,
    /// Tokens of the new prompt that it stands for, kept or not.
    pub tokens: usize,
}

/// The newest sessions.
#[derive(Debug)]
pub struct SparseSessions {
    limit: usize,
    sessions: Vec<SparseSession>,
}

impl SparseSessions {
    /// At most `limit` sessions; the oldest go first.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            sessions: Vec::new(),
        }
    }

    /// Keeps a session.
    pub fn insert(&mut self, session: SparseSession) {
        if self.limit == 0 {
            return;
        }
        if self.sessions.len() >= self.limit {
            self.sessions.remove(0);
        }
        self.sessions.push(session);
    }

    /// Bytes of all sessions' caches.
    pub fn bytes(&self) -> usize {
        self.sessions.iter().map(|s| s.cache.bytes()).sum()
    }

    /// Forgets the sessions of a model.
    pub fn forget(&mut self, model: &str) {
        self.sessions.retain(|session| session.model != model);
    }

    /// Takes out the session that `prompt` continues with at most `most_new` tokens: the one that shares the most with it. Sessions are handed over, not copied: a
    /// second continuation of the same turn starts anew.
    ///
    /// # Errors
    /// When the cache cannot go back to the shared place; the session is gone then.
    pub fn resume(
        &mut self,
        model: &str,
        prompt: &[u32],
        most_new: usize,
    ) -> Result<Option<ResumedSession>, EngineError> {
        let best = self
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, session)| session.model == model)
            .filter_map(|(index, session)| Some((session.resumes_at(prompt)?, index)))
            .filter(|(tokens, _)| prompt.len() - tokens <= most_new)
            .max_by_key(|(tokens, _)| *tokens);
        let Some((tokens, index)) = best else {
            return Ok(None);
        };
        let mut session = self.sessions.remove(index);
        session.go_back(tokens)?;
        Ok(Some(ResumedSession {
            cache: session.cache,
            tokens,
        }))
    }
}

impl SparseSession {
    /// The number of tokens that `prompt` and the session have in common and at which the cache can stand; `None` when that is too few.
    fn resumes_at(&self, prompt: &[u32]) -> Option<usize> {
        // At least one token is left to run.
        let most = prompt.len().checked_sub(1)?;
        let common = self
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count()
            .min(most)
            .min(self.cache.next_position() as usize);
        if common < self.least {
            return None;
        }
        if !self.cache.has_recurrent_layers() || common == self.cache.next_position() as usize {
            return Some(common);
        }
        self.marks
            .iter()
            .map(|mark| mark.next_position() as usize)
            .rfind(|at| *at <= common && *at >= self.least)
    }

    fn go_back(&mut self, tokens: usize) -> Result<(), CacheError> {
        if tokens == self.cache.next_position() as usize {
            return Ok(());
        }
        let at = |mark: &&SequenceMark| mark.next_position() as usize == tokens;
        if let Some(mark) = self.marks.iter().find(at) {
            return self.cache.rewind(mark);
        }
        let held = self
            .cache
            .positions()
            .as_slice()
            .partition_point(|position| (*position as usize) < tokens);
        self.cache.trim(held)
    }
}
