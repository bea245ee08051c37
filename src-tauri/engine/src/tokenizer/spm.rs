//! Byte-pair encoding as SentencePiece does it: merges are ordered by the score of the piece that they make.
//!
//! Any two neighbours whose concatenation is a piece may merge; the highest score goes first and the leftmost of equal
//! ones. (The `tokenizers` crate orders by the rank of a *pair*, which gives two ways to make one piece different
//! priorities, so that its results differ in rare cases.) Characters without a piece become byte tokens `<0xE2>`.
//! Kudo and Richardson, "SentencePiece", 2018; the order of ties is that of its `bpe_model.cc`.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use tokenizers::Token;

/// A SentencePiece BPE vocabulary.
pub(crate) struct SentencePieceBpe {
    /// By id.
    pieces: Vec<String>,
    /// By id.
    scores: Vec<f32>,
    ids: HashMap<String, u32>,
    /// Ids that text may become: neither control tokens nor byte tokens.
    mergeable: Vec<bool>,
    /// Token of each byte, where there is one.
    bytes: Vec<Option<u32>>,
    unk: Option<u32>,
}

/// A pair of neighbouring symbols that may merge.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was found; a pair whose symbols have changed since is stale.
    length: usize,
    id: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
            .then(other.length.cmp(&self.length))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// A piece of the text in a doubly linked list; empty when it was merged into its left neighbour.
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
    id: Option<u32>,
}

impl SentencePieceBpe {
    /// A vocabulary of distinct `pieces` with a score each; `mergeable` says which of them text may become.
    pub(crate) fn new(
        pieces: Vec<String>,
        scores: Vec<f32>,
        mergeable: Vec<bool>,
        bytes: Vec<Option<u32>>,
        unk: Option<u32>,
    ) -> Self {
        let ids = pieces
            .iter()
            .zip(0..)
            .map(|(piece, id)| (piece.clone(), id))
            .collect();
        Self {
            pieces,
            scores,
            ids,
            mergeable,
            bytes,
            unk,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn vocab(&self) -> HashMap<String, u32> {
        self.ids.clone()
    }

    pub(crate) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    pub(crate) fn id_to_token(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(String::as_str)
    }

    /// The piece that `text` is, with its score, if text may become it.
    fn piece(&self, text: &str) -> Option<(u32, f32)> {
        let id = self.token_to_id(text)?;
        let at = id as usize;
        let mergeable = self.mergeable.get(at).copied().unwrap_or(false);
        self.scores
            .get(at)
            .filter(|_| mergeable)
            .map(|&score| (id, score))
    }

    /// Splits `text`, in which spaces are already written as U+2581, into pieces.
    pub(crate) fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let mut symbols: Vec<Symbol> = Vec::new();
        for (start, character) in text.char_indices() {
            let end = start + character.len_utf8();
            let at = symbols.len();
            symbols.push(Symbol {
                start,
                end,
                previous: at.checked_sub(1),
                next: (end < text.len()).then_some(at + 1),
                id: text
                    .get(start..end)
                    .and_then(|piece| self.piece(piece))
                    .map(|(id, _)| id),
            });
        }

        let mut pairs = BinaryHeap::new();
        for right in 1..symbols.len() {
            pairs.extend(self.pair(text, &symbols, Some(right - 1), Some(right)));
        }
        while let Some(pair) = pairs.pop() {
            let Ok([left, right]) = symbols.get_disjoint_mut([pair.left, pair.right]) else {
                continue;
            };
            let empty = left.start == left.end || right.start == right.end;
            if empty || right.end - left.start != pair.length {
                continue;
            }
            left.end = right.end;
            left.id = Some(pair.id);
            left.next = right.next;
            right.start = right.end;
            let (previous, next) = (left.previous, left.next);
            if let Some(symbol) = next.and_then(|next| symbols.get_mut(next)) {
                symbol.previous = Some(pair.left);
            }
            pairs.extend(self.pair(text, &symbols, previous, Some(pair.left)));
            pairs.extend(self.pair(text, &symbols, Some(pair.left), next));
        }

        let mut tokens = Vec::new();
        for symbol in symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            self.push_tokens(text, symbol, &mut tokens)?;
        }
        Ok(tokens)
    }

    /// The pair of two neighbours, if together they are a piece.
    fn pair(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let (start, end) = (symbols.get(left)?.start, symbols.get(right)?.end);
        let (id, score) = self.piece(text.get(start..end)?)?;
        Some(Pair {
            score,
            left,
            right,
            length: end - start,
            id,
        })
    }

    fn push_tokens(
        &self,
        text: &str,
        symbol: &Symbol,
        tokens: &mut Vec<Token>,
    ) -> tokenizers::Result<()> {
        let mut push = |id: u32, start: usize, end: usize| {
            let piece = self.id_to_token(id).unwrap_or_default();
            tokens.push(Token::new(id, piece.to_owned(), (start, end)));
        };
        let (start, end) = (symbol.start, symbol.end);
        if let Some(id) = symbol.id {
            push(id, start, end);
            return Ok(());
        }
        let text = text.get(start..end).unwrap_or_default();
        let bytes: Option<Vec<u32>> = text
            .bytes()
            .map(|byte| self.bytes.get(usize::from(byte)).copied().flatten())
            .collect();
        match (bytes, self.unk) {
            (Some(ids), _) => {
                for (at, id) in ids.into_iter().enumerate() {
                    push(id, start + at, start + at + 1);
                }
            }
            (None, Some(unk)) => push(unk, start, end),
            (None, None) => {
                return Err(format!("the vocabulary has no token for {text:?}").into());
            }
        }
        Ok(())
    }
}
