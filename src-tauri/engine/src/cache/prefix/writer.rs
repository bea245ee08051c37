//! Publishes what one sequence computes.

use super::{
    block::{BLOCK_TOKENS, BlockId, PrefixRoot},
    store::PrefixCache,
};
use crate::cache::{CacheError, RecurrentStates, SequenceCache};

/// Tokens between two states of recurrent layers that are kept in any case. A state is as large as the keys and values of hundreds of
/// tokens, so not every block gets one.
const STATE_INTERVAL: usize = 2048;

/// The way of one sequence through the prefix cache: which of its blocks are there already.
#[derive(Debug)]
pub struct PrefixWriter {
    root: PrefixRoot,
    /// The chain so far: the root, then one id for each whole block.
    ids: Vec<BlockId>,
    /// The newest block boundary that this sequence stood at, with its states.
    newest: Option<(usize, RecurrentStates)>,
}

impl PrefixWriter {
    /// For a sequence that begins at `root`.
    pub fn new(root: PrefixRoot) -> Self {
        Self {
            root,
            ids: vec![root.id()],
            newest: None,
        }
    }

    /// Publishes all whole blocks of `tokens`, the sequence's tokens so far, that `sequence` holds and the cache lacks. To be called at
    /// least whenever the sequence stands at a block boundary: states can be taken only there.
    ///
    /// # Errors
    /// When the sequence's cache is sparse (it must never be found under dense tokens) or memory ran out.
    pub fn advance(
        &mut self,
        cache: &mut PrefixCache,
        tokens: &[u32],
        sequence: &SequenceCache,
    ) -> Result<(), CacheError> {
        if !cache.is_enabled() {
            return Ok(());
        }
        if !sequence.is_dense()? {
            return Err(CacheError::Sparse);
        }
        let held = sequence.token_count()?.min(tokens.len());
        while self.ids.len() * BLOCK_TOKENS <= held {
            let start = (self.ids.len() - 1) * BLOCK_TOKENS;
            let rows = start..start + BLOCK_TOKENS;
            let parent = self.ids[self.ids.len() - 1];
            let id = parent.child(&tokens[rows.clone()]);
            if !cache.touch(id) {
                let rows = sequence.copy_rows(rows)?;
                cache.insert(self.root, parent, id, rows, None);
            }
            self.ids.push(id);
        }
        // A state stands for all that the sequence holds, be it more than `tokens`.
        let whole = held == sequence.token_count()?;
        if held > 0 && whole && held.is_multiple_of(BLOCK_TOKENS) && sequence.has_recurrent_layers()
        {
            self.newest = Some((held, sequence.recurrent_states()));
            if held.is_multiple_of(STATE_INTERVAL) {
                self.keep_states(cache);
            }
        }
        Ok(())
    }

    /// Keeps the states of the newest boundary: at the end of a prompt and at the end of an answer, where a next turn will resume.
    pub fn keep_states(&mut self, cache: &mut PrefixCache) {
        if let Some((tokens, states)) = self.newest.take()
            && let Some(id) = self.ids.get(tokens / BLOCK_TOKENS)
        {
            cache.add_states(*id, states);
        }
    }

    /// Keeps the sequence as it stands, `tokens` long, as a terminal block.
    ///
    /// # Errors
    /// As [`PrefixWriter::advance`].
    pub fn finish_static_prefix(
        &mut self,
        cache: &mut PrefixCache,
        tokens: &[u32],
        sequence: &SequenceCache,
    ) -> Result<(), CacheError> {
        self.advance(cache, tokens, sequence)?;
        let start = (self.ids.len() - 1) * BLOCK_TOKENS;
        if !cache.is_enabled() || sequence.token_count()? != tokens.len() {
            return Ok(());
        }
        if start == tokens.len() {
            self.keep_states(cache);
            return Ok(());
        }
        let parent = self.ids[self.ids.len() - 1];
        let id = parent.terminal(&tokens[start..]);
        if !cache.touch(id) {
            let rows = sequence.copy_rows(start..tokens.len())?;
            let states = sequence
                .has_recurrent_layers()
                .then(|| sequence.recurrent_states());
            cache.insert(self.root, parent, id, rows, states);
        }
        Ok(())
    }
}
