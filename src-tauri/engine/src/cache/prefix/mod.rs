//! The prefix cache: what was computed for the beginnings of earlier prompts, found again by their tokens.
//!
//! Prompts are cut into blocks of [`BLOCK_TOKENS`]. A block is known by the hash of its tokens and of all before it, so two
//! conversations share what they have in common and nothing else. Attention layers are restored from the blocks' keys and values;
//! recurrent layers from a state that some blocks carry for their last token, so a hybrid model resumes at the newest block with a
//! state. The beginning of a prompt that is system text and tools may end inside a block: it is kept as a terminal block, found only
//! by exactly these tokens.

mod block;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use block::{BLOCK_TOKENS, PrefixRoot};
pub use store::{PrefixCache, PrefixHit, PrefixStatistics};
pub use writer::PrefixWriter;
