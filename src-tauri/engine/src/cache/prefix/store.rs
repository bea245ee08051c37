//! The store of blocks: lookup, eviction, accounting.

use std::{collections::HashMap, sync::Arc};

use super::block::{BLOCK_TOKENS, BlockId, PrefixRoot};
use crate::cache::{RecurrentStates, SharedRows};

/// One block.
#[derive(Debug)]
struct Entry {
    rows: Arc<SharedRows>,
    /// States of the recurrent layers after the block's last token.
    states: Option<RecurrentStates>,
    parent: BlockId,
    root: PrefixRoot,
    /// Blocks that hang on this one: it must not go before them, for they could not be reached any more.
    children: usize,
    last_used: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.rows.bytes() + self.states.as_ref().map_or(0, RecurrentStates::bytes)
    }
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixStatistics {
    /// Lookups that found something.
    pub hits: u64,
    /// Lookups that found nothing.
    pub misses: u64,
    /// Tokens that did not have to be computed again.
    pub tokens_restored: u64,
    /// Blocks that went to make room.
    pub evicted: u64,
}

/// What a lookup found: enough to fill a [`SequenceCache`](crate::cache::SequenceCache).
#[derive(Debug)]
pub struct PrefixHit {
    /// The prompt's first tokens that need no computing.
    pub tokens: usize,
    /// Their keys and values; the last block may hold more.
    pub blocks: Vec<Arc<SharedRows>>,
    /// States of the recurrent layers after exactly these tokens.
    pub states: Option<RecurrentStates>,
}

/// Blocks of many prompts within a budget of bytes; the least recently used go first.
#[derive(Debug)]
pub struct PrefixCache {
    budget: usize,
    bytes: usize,
    entries: HashMap<BlockId, Entry>,
    clock: u64,
    statistics: PrefixStatistics,
}

impl PrefixCache {
    /// An empty cache; a budget of 0 bytes switches it off.
    pub fn new(budget: usize) -> Self {
        Self {
            budget,
            bytes: 0,
            entries: HashMap::new(),
            clock: 0,
            statistics: PrefixStatistics::default(),
        }
    }

    /// False when nothing is ever kept.
    pub fn is_enabled(&self) -> bool {
        self.budget > 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Blocks held.
    pub fn blocks(&self) -> usize {
        self.entries.len()
    }

    /// Counts since the start.
    pub fn statistics(&self) -> PrefixStatistics {
        self.statistics
    }

    /// The longest known beginning of `tokens`, but never all of them: the last one has to be computed for its logits.
    ///
    /// `static_prefix`: a terminal block of exactly so many tokens is looked for too. `recurrent`: the model has recurrent layers, so only
    /// places with a state count.
    pub fn lookup(
        &mut self,
        root: PrefixRoot,
        tokens: &[u32],
        static_prefix: usize,
        recurrent: bool,
    ) -> Option<PrefixHit> {
        if !self.is_enabled() {
            return None;
        }
        let hit = self.find(root, tokens, static_prefix, recurrent);
        match &hit {
            Some(hit) => {
                self.statistics.hits += 1;
                self.statistics.tokens_restored += hit.tokens as u64;
            }
            None => self.statistics.misses += 1,
        }
        hit
    }

    fn find(
        &mut self,
        root: PrefixRoot,
        tokens: &[u32],
        static_prefix: usize,
        recurrent: bool,
    ) -> Option<PrefixHit> {
        let most = tokens.len().checked_sub(1)?;
        let mut chain = Vec::new();
        let mut ids = vec![root.id()];
        for block in tokens.chunks_exact(BLOCK_TOKENS) {
            let id = ids[ids.len() - 1].child(block);
            if !self.entries.contains_key(&id) {
                break;
            }
            ids.push(id);
            chain.push(id);
        }
        // The newest place at which every layer can resume.
        let mut resume = (chain.len() * BLOCK_TOKENS).min(most);
        if recurrent {
            let has_state = |id: &BlockId| self.entries.get(id).is_some_and(|e| e.states.is_some());
            resume = (1..=chain.len())
                .rev()
                .find(|n| n * BLOCK_TOKENS <= most && has_state(&chain[n - 1]))
                .map_or(0, |n| n * BLOCK_TOKENS);
        }
        let whole = static_prefix / BLOCK_TOKENS;
        if static_prefix > resume
            && static_prefix <= most
            && chain.len() >= whole
            && !static_prefix.is_multiple_of(BLOCK_TOKENS)
        {
            let id = ids[whole].terminal(&tokens[whole * BLOCK_TOKENS..static_prefix]);
            let fits = |e: &Entry| !recurrent || e.states.is_some();
            if self.entries.get(&id).is_some_and(fits) {
                chain.truncate(whole);
                chain.push(id);
                return Some(self.hit(&chain, static_prefix, recurrent));
            }
        }
        if resume == 0 {
            return None;
        }
        chain.truncate(resume.div_ceil(BLOCK_TOKENS));
        Some(self.hit(&chain, resume, recurrent))
    }

    /// Marks a chain as used and gives its content.
    fn hit(&mut self, chain: &[BlockId], tokens: usize, recurrent: bool) -> PrefixHit {
        self.clock += 1;
        let mut blocks = Vec::with_capacity(chain.len());
        let mut states = None;
        for id in chain {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.last_used = self.clock;
                blocks.push(entry.rows.clone());
                states = entry.states.clone().filter(|_| recurrent);
            }
        }
        PrefixHit {
            tokens,
            blocks,
            states,
        }
    }

    /// True when the block is there; it counts as used then.
    pub(super) fn touch(&mut self, id: BlockId) -> bool {
        self.clock += 1;
        let clock = self.clock;
        self.entries
            .get_mut(&id)
            .map(|entry| entry.last_used = clock)
            .is_some()
    }

    /// Adds a state to a block that has none.
    pub(super) fn add_states(&mut self, id: BlockId, states: RecurrentStates) {
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.states.is_none()
        {
            self.bytes += states.bytes();
            entry.states = Some(states);
            self.make_room();
        }
    }

    /// Adds a block after `parent`, which is a root or a block that is there; else nothing happens, for it could never be found.
    pub(super) fn insert(
        &mut self,
        root: PrefixRoot,
        parent: BlockId,
        id: BlockId,
        rows: SharedRows,
        states: Option<RecurrentStates>,
    ) {
        if self.entries.contains_key(&id) {
            return;
        }
        if parent != root.id() {
            match self.entries.get_mut(&parent) {
                Some(entry) => entry.children += 1,
                None => return,
            }
        }
        self.clock += 1;
        let entry = Entry {
            rows: Arc::new(rows),
            states,
            parent,
            root,
            children: 0,
            last_used: self.clock,
        };
        self.bytes += entry.bytes();
        self.entries.insert(id, entry);
        self.make_room();
    }

    fn make_room(&mut self) {
        while self.bytes > self.budget {
            let oldest = self
                .entries
                .iter()
                .filter(|(_, entry)| entry.children == 0)
                .min_by_key(|(_, entry)| entry.last_used)
                .map(|(id, _)| *id);
            let Some(id) = oldest else { break };
            self.statistics.evicted += 1;
            self.remove(id);
        }
    }

    fn remove(&mut self, id: BlockId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.bytes -= entry.bytes();
            if let Some(parent) = self.entries.get_mut(&entry.parent) {
                parent.children -= 1;
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Forgets all blocks of a root: its model is gone.
    pub fn forget(&mut self, root: PrefixRoot) {
        self.entries.retain(|_, entry| entry.root != root);
        self.bytes = self.entries.values().map(Entry::bytes).sum();
    }
}
