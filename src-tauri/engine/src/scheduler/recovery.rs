//! Dense recovery: in idle time, a prompt that was answered sparsely is read whole, so that the conversation's next turn finds it in the
//! prefix cache.

use super::stores::{Stores, prefix_root};
use crate::{
    cache::{BLOCK_TOKENS, PrefixWriter, SequenceCache},
    error::EngineError,
    models::{ForwardInput, LogitRows, Model},
    positions::Positions,
};

/// Tokens of one step: a request that arrives waits for one step at most.
const CHUNK: usize = BLOCK_TOKENS;

/// One prompt on its way into the prefix cache.
#[derive(Debug)]
pub(super) struct Recovery {
    model: String,
    tokens: Vec<u32>,
    cache: Option<SequenceCache>,
    writer: PrefixWriter,
    done: usize,
}

impl Recovery {
    /// For the whole blocks of `tokens`.
    pub(super) fn new(model: &str, mut tokens: Vec<u32>) -> Self {
        tokens.truncate(tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS);
        Self {
            model: model.to_string(),
            tokens,
            cache: None,
            writer: PrefixWriter::new(prefix_root(model)),
            done: 0,
        }
    }

    /// Name of the model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// True when `other` covers all of this one's tokens.
    pub(super) fn is_covered_by(&self, other: &Self) -> bool {
        self.model == other.model && other.tokens.starts_with(&self.tokens)
    }

    /// Goes on from where `other`, which this one covers, has got to: turns that follow each other quickly must not begin anew each time.
    pub(super) fn take_over(&mut self, other: Self) {
        if other.done > self.done {
            self.cache = other.cache;
            self.writer = other.writer;
            self.done = other.done;
        }
    }

    /// Reads the next tokens; true when there are no more.
    ///
    /// # Errors
    /// When the model fails.
    pub(super) fn step(
        &mut self,
        model: &dyn Model,
        stores: &mut Stores,
    ) -> Result<bool, EngineError> {
        if !stores.prefix.is_enabled() {
            return Ok(true);
        }
        let cache = match &mut self.cache {
            Some(cache) => cache,
            none => {
                let mut cache = model.new_cache();
                let root = prefix_root(&self.model);
                let recurrent = cache.has_recurrent_layers();
                if let Some(hit) = stores.prefix.lookup(root, &self.tokens, 0, recurrent) {
                    cache.restore_dense(&hit.blocks, hit.tokens, hit.states.as_ref())?;
                    self.done = hit.tokens;
                }
                none.insert(cache)
            }
        };
        if self.done >= self.tokens.len() {
            return Ok(true);
        }
        let end = self.tokens.len().min((self.done / CHUNK + 1) * CHUNK);
        let positions = Positions::contiguous(self.done as u32, end - self.done);
        let input = ForwardInput::new(&self.tokens[self.done..end], &positions, LogitRows::None);
        model.forward(input, cache)?;
        self.done = end;
        self.writer
            .advance(&mut stores.prefix, &self.tokens[..end], cache)?;
        let finished = end == self.tokens.len();
        if finished {
            self.writer.keep_states(&mut stores.prefix);
            tracing::debug!(
                model = self.model,
                tokens = self.tokens.len(),
                "a sparsely answered prompt is in the prefix cache now"
            );
        }
        Ok(finished)
    }
}
