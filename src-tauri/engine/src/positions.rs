//! Positions of tokens, always explicit: nothing in the engine derives a position from a cache's length.

/// The positions of the tokens of one forward pass.
///
/// `order` is the index of each token in the true prompt (ascending): attention is causal in it. Rotary angles are taken from it too,
/// or, for models with mRoPE, from three rows of their own (temporal, height, width), which are equal for text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions {
    order: Vec<u32>,
    mrope: Option<[Vec<u32>; 3]>,
}

impl Positions {
    /// Consecutive tokens of a text: `start`, `start + 1`, ...
    pub fn contiguous(start: u32, len: usize) -> Self {
        Self {
            order: (start..).take(len).collect(),
            mrope: None,
        }
    }

    /// Any ascending selection of tokens.
    ///
    /// # Errors
    /// When the positions are not strictly ascending: attention's causal mask would be wrong.
    pub fn selected(order: Vec<u32>) -> Result<Self, String> {
        if let Some(pair) = order.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!(
                "positions must ascend, but {} is followed by {}",
                pair[0], pair[1]
            ));
        }
        Ok(Self { order, mrope: None })
    }

    /// The same tokens with three rows of rotary positions, one position a token each.
    ///
    /// # Errors
    /// When a row has another length.
    pub fn with_mrope(mut self, rows: [Vec<u32>; 3]) -> Result<Self, String> {
        if let Some(row) = rows.iter().find(|row| row.len() != self.order.len()) {
            return Err(format!(
                "{} rotary positions do not fit {} tokens",
                row.len(),
                self.order.len()
            ));
        }
        self.mrope = Some(rows);
        Ok(self)
    }

    /// The positions of some of the tokens. A range past the end gives what there is.
    pub fn part(&self, tokens: std::ops::Range<usize>) -> Self {
        let cut = |row: &[u32]| {
            let end = tokens.end.min(row.len());
            row[tokens.start.min(end)..end].to_vec()
        };
        Self {
            order: cut(&self.order),
            mrope: self
                .mrope
                .as_ref()
                .map(|rows| [0, 1, 2].map(|i| cut(&rows[i]))),
        }
    }

    /// Rotary positions in row `axis`: 0 temporal, 1 height, 2 width.
    pub fn rotary_row(&self, axis: usize) -> &[u32] {
        match &self.mrope {
            Some(rows) => &rows[axis.min(2)],
            None => &self.order,
        }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True when there is no token.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Index of each token in the true prompt: for rotary angles, the causal mask and windows.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The position that the token after the last one takes.
    pub fn next(&self) -> Option<u32> {
        self.order.last().map(|p| p + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_and_next() {
        let p = Positions::contiguous(120, 3);
        assert_eq!(p.order(), [120, 121, 122]);
        assert_eq!(p.next(), Some(123));
        assert_eq!(Positions::contiguous(5, 0).next(), None);
    }

    #[test]
    fn selections_must_ascend() {
        assert!(Positions::selected(vec![0, 4, 9]).is_ok());
        assert!(Positions::selected(vec![0, 4, 4]).is_err());
        assert!(Positions::selected(vec![3, 2]).is_err());
    }
}
