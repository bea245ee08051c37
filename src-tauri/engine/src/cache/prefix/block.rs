//! Blocks of tokens and the hashes that they are known by.

use sha2::{Digest, Sha256};

/// Tokens of a whole block.
pub const BLOCK_TOKENS: usize = 256;

/// Identity of a block: a hash of its tokens and of everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BlockId([u8; 32]);

/// Where a chain of blocks begins: one for every model and kind of cache, so that none is ever taken for another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixRoot(BlockId);

impl PrefixRoot {
    /// For a model, by its unique name, and a kind of cache: what else its content depends on.
    pub fn new(model: &str, kind: &str) -> Self {
        let mut hash = Sha256::new();
        for part in ["headstart prefix", model, kind] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(BlockId(hash.finalize().into()))
    }

    pub(super) fn id(self) -> BlockId {
        self.0
    }
}

impl BlockId {
    /// The block of `tokens` after this one.
    pub(super) fn child(self, tokens: &[u32]) -> Self {
        self.derive(b"block", tokens)
    }

    /// The terminal block of `tokens` after this one; never equal to a whole block's.
    pub(super) fn terminal(self, tokens: &[u32]) -> Self {
        self.derive(b"final", tokens)
    }

    fn derive(self, domain: &[u8; 5], tokens: &[u32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(domain);
        hash.update(self.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        Self(hash.finalize().into())
    }
}
