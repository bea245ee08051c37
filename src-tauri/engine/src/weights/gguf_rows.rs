//! The row orders in which llama.cpp's converter stores what its kernels read.

/// Sizes of the GatedDeltaNet layers whose value heads are stored tiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TiledValueHeads {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}

/// What the converter to GGUF changed in an architecture's row order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufRows {
    /// Nothing.
    AsTrained,
    /// Query and key rows (`llama`): its rotary embedding turns neighbouring pairs, ours turns halves.
    InterleavedHeads {
        /// Query heads.
        queries: usize,
        /// Key heads.
        keys: usize,
    },
    /// The value heads of GatedDeltaNet (`qwen35`, `qwen35moe`). As trained, the value heads of one key head are neighbours; stored,
    /// value head `i` belongs to key head `i % key_heads`.
    TiledValueHeads(TiledValueHeads),
}

impl GgufRows {
    /// For each row that the layers expect of the module `name`, the stored row; `None` when the order is the same.
    pub(super) fn order(&self, name: &str, rows: usize) -> Option<Vec<usize>> {
        match self {
            Self::AsTrained => None,
            Self::InterleavedHeads { queries, keys } => {
                let heads = if name.ends_with("self_attn.q_proj") {
                    *queries
                } else if name.ends_with("self_attn.k_proj") {
                    *keys
                } else {
                    return None;
                };
                (heads > 0 && rows.is_multiple_of(2 * heads))
                    .then(|| interleaved(rows, heads).collect())
            }
            Self::TiledValueHeads(sizes) => {
                let heads = sizes.stored_heads()?;
                let module = name.rsplit_once("linear_attn.")?.1;
                let (first, width) = match module {
                    "in_proj_qkv" | "conv1d" => {
                        (2 * sizes.key_heads * sizes.key_dim, sizes.value_dim)
                    }
                    "in_proj_z" => (0, sizes.value_dim),
                    "in_proj_a" | "in_proj_b" | "A_log" | "dt_bias" => (0, 1),
                    _ => return None,
                };
                if rows != first + sizes.value_heads * width {
                    return None;
                }
                let values = heads
                    .into_iter()
                    .flat_map(|head| (0..width).map(move |i| first + head * width + i));
                Some((0..first).chain(values).collect())
            }
        }
    }
}

impl TiledValueHeads {
    /// For each value head in the order as trained, its place in the stored order; `None` when they are the same.
    fn stored_heads(&self) -> Option<Vec<usize>> {
        if self.key_heads == 0 || self.key_heads == self.value_heads {
            return None;
        }
        let shared = self.value_heads / self.key_heads;
        Some(
            (0..self.value_heads)
                .map(|head| head % shared * self.key_heads + head / shared)
                .collect(),
        )
    }

    /// For each place of the stored order, the value head as trained; `None` when they are the same.
    pub(super) fn trained_heads(&self) -> Option<Vec<u32>> {
        let stored = self.stored_heads()?;
        let mut trained = vec![0; stored.len()];
        for (head, place) in stored.into_iter().enumerate() {
            trained[place] = head as u32;
        }
        Some(trained)
    }
}

/// The converter turned head rows `[2, half]` into `[half, 2]`.
fn interleaved(rows: usize, heads: usize) -> impl Iterator<Item = usize> {
    let head_dim = rows / heads;
    let half = head_dim / 2;
    (0..rows).map(move |row| {
        let (head, within) = (row / head_dim, row % head_dim);
        let (part, i) = (within / half, within % half);
        head * head_dim + 2 * i + part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_two_heads_are_unzipped() {
        let order: Vec<usize> = interleaved(8, 2).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        let order: Vec<usize> = interleaved(6, 1).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn value_heads_are_grouped_by_key_head_again() {
        let sizes = TiledValueHeads {
            key_heads: 2,
            value_heads: 6,
            key_dim: 1,
            value_dim: 2,
        };
        let rows = GgufRows::TiledValueHeads(sizes);
        // Stored: the first value heads of both key heads, then the second ones, then the third ones.
        assert_eq!(
            rows.order("model.layers.0.linear_attn.A_log", 6),
            Some(vec![0, 2, 4, 1, 3, 5])
        );
        assert_eq!(
            rows.order("model.layers.0.linear_attn.in_proj_qkv", 16),
            Some(vec![0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 6, 7, 10, 11, 14, 15])
        );
        assert_eq!(rows.order("model.layers.0.linear_attn.out_proj", 8), None);
        assert_eq!(rows.order("model.layers.0.self_attn.q_proj", 8), None);
        assert_eq!(sizes.trained_heads(), Some(vec![0, 3, 1, 4, 2, 5]));
        let equal = TiledValueHeads {
            value_heads: 2,
            ..sizes
        };
        assert_eq!(equal.trained_heads(), None);
    }
}
