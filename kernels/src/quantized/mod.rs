//! Matmul with quantized weights on the CPU: GGUF block types and MLX affine groups, in one packed layout.
//!
//! [`PackedMatrix`] regroups a matrix `[N, K]` into tiles of 16 rows of weights and blocks of 32 along `K`, so that one
//! dot-product instruction serves 16 outputs. Every 32-block has the form `w = scale * code + min`, whatever the format.
//! Activations are rounded to 8 bit per 32-block, as llama.cpp does ([`ActivationPrecision::Int8`]), or kept
//! ([`ActivationPrecision::F32`]). Either way a row's result does not depend on how many rows run together, bit for bit:
//! each output is summed block by block in ascending order by the same operations.

mod activations;
mod affine;
mod codes;
mod format;
mod gguf;
mod int8;
mod kernel;
mod matmul;
mod scales;
#[cfg(test)]
mod tests;

use candle_core::{DType, Result, Tensor};

use crate::tensor::{for_element, from_values, with_slice};
use format::Format;

pub use affine::AffineParams;
pub use gguf::GgufQuant;
pub(crate) use int8::BlockDot;

/// Rows of weights (output features) in a tile.
pub(crate) const TILE: usize = 16;
/// Elements along `K` in a block.
pub(crate) const BLOCK: usize = 32;

/// How the activations of a matmul are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationPrecision {
    /// Rounded to 8 bit with one f32 scale per 32 values: fast.
    #[default]
    Int8,
    /// Rounded twice: to 8 bit, and what that left to 8 bit again, about 15 bit in all. Costs what twice as many rows of
    /// [`Self::Int8`] cost, which for a few rows is little more than one: the weights are still read once.
    Int8Twice,
    /// As they are; weights are widened to f32: exact up to f32 sums, and slower.
    F32,
}

/// A quantized weight matrix `[N, K]`, packed for the CPU kernels. It takes the room of the bytes it was made from
/// (Q3_K, Q4_K and Q5_K: 2 to 4 % more; `N` is padded to a multiple of 16).
pub struct PackedMatrix {
    n: usize,
    k: usize,
    format: Format,
    precision: ActivationPrecision,
    /// Tiles one after another; within a tile, groups along `K`: each a header of scales, then the codes of its blocks.
    data: Vec<u8>,
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedMatrix")
            .field("n", &self.n)
            .field("k", &self.k)
            .field("format", &self.format)
            .field("precision", &self.precision)
            .field("bytes", &self.data.len())
            .finish()
    }
}

impl PackedMatrix {
    /// Rows of weights: output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns of weights: input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of memory that the weights take.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// How activations are kept.
    pub fn precision(&self) -> ActivationPrecision {
        self.precision
    }

    /// The same weights, with activations kept as `precision` says.
    pub fn with_precision(mut self, precision: ActivationPrecision) -> Self {
        self.precision = precision;
        self
    }

    /// `x W^T` for `x` of shape `[.., K]` (f32, f16 or bf16, on the CPU): gives `[.., N]` in x's dtype.
    ///
    /// # Errors
    /// If `x` is not on the CPU, or its last dimension or dtype does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut shape = x.dims().to_vec();
        match shape.last_mut() {
            Some(last) if *last == self.k => *last = self.n,
            _ => candle_core::bail!(
                "matmul: {:?} does not fit weights [{}, {}]",
                x.shape(),
                self.n,
                self.k
            ),
        }
        let m = x.elem_count() / self.k;
        for_element!(x.dtype(), T => with_slice::<T, _>(x, |x| {
            let mut out = vec![0f32; m * self.n];
            if let Some(x) = <T as crate::Element>::as_f32(x) {
                self.matmul(x, m, &mut out)?;
                return from_values(out, shape)?.to_dtype(<T as candle_core::WithDType>::DTYPE);
            }
            let mut wide = vec![0f32; x.len()];
            <T as crate::Element>::widen(x, &mut wide);
            self.matmul(&wide, m, &mut out)?;
            let mut narrow = vec![T::default(); out.len()];
            <T as crate::Element>::narrow(&out, &mut narrow);
            from_values(narrow, shape)
        }))
    }

    /// `x W^T` on slices: `x` is `[m, K]`, `out` is `[m, N]`, both dense.
    ///
    /// # Errors
    /// If the lengths do not fit.
    pub fn matmul(&self, x: &[f32], m: usize, out: &mut [f32]) -> Result<()> {
        if Some(x.len()) != m.checked_mul(self.k) || Some(out.len()) != m.checked_mul(self.n) {
            candle_core::bail!(
                "matmul: {m} rows over weights [{}, {}] cannot have {} inputs and {} outputs",
                self.n,
                self.k,
                x.len(),
                out.len()
            );
        }
        matmul::matmul(self, x, m, out);
        Ok(())
    }

    /// The rows of weights `ids`, widened to `dtype`: `[ids, K]` on the CPU (embedding lookup).
    ///
    /// # Errors
    /// If an id is not below `N`, or the dtype is none of f32, f16, bf16.
    pub fn dequantize_rows(&self, ids: &[u32], dtype: DType) -> Result<Tensor> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.n) {
            candle_core::bail!("row {id} was asked of a matrix of {} rows", self.n);
        }
        for_element!(dtype, T => {
            let mut out = vec![T::default(); ids.len() * self.k];
            let mut wide = vec![0f32; self.k];
            for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.k)) {
                self.dequantize_row(id as usize, dtype, &mut wide);
                <T as crate::Element>::narrow(&wide, out);
            }
            from_values(out, (ids.len(), self.k))
        })
    }

    /// The matrix of the rows `ids`, in their order and as they are stored: its products are, bit for bit, those rows' products.
    ///
    /// # Errors
    /// If an id is not below `N`.
    pub fn select_rows(&self, ids: &[u32]) -> Result<Self> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.n) {
            candle_core::bail!("row {id} was asked of a matrix of {} rows", self.n);
        }
        let (groups, bytes) = (self.groups(), self.format.record_bytes());
        let mut data = vec![0; ids.len().div_ceil(TILE) * groups * bytes];
        for (tile, ids) in ids.chunks(TILE).enumerate() {
            for (column, id) in ids.iter().enumerate() {
                let (from_tile, from_column) = (*id as usize / TILE, *id as usize % TILE);
                for group in 0..groups {
                    let to = &mut data[(tile * groups + group) * bytes..][..bytes];
                    let from = self.record(from_tile, group);
                    self.format.copy_column((from, from_column), (to, column));
                }
            }
        }
        Ok(Self {
            n: ids.len(),
            k: self.k,
            format: self.format,
            precision: self.precision,
            data,
        })
    }

    /// Row `row` of the weights, widened for a reader who wants `dtype`.
    fn dequantize_row(&self, row: usize, dtype: DType, out: &mut [f32]) {
        let (tile, column) = (row / TILE, row % TILE);
        for (group, out) in out.chunks_exact_mut(self.format.blocks * BLOCK).enumerate() {
            let record = self.record(tile, group);
            for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                let codes = codes::column(
                    self.format.bits,
                    self.format.codes_of(record, block),
                    column,
                );
                scales::dequantize(&self.format, record, block, column, &codes, dtype, out);
            }
        }
    }

    fn tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    fn groups(&self) -> usize {
        self.k / (self.format.blocks * BLOCK)
    }

    /// The bytes of one group of one tile.
    fn record(&self, tile: usize, group: usize) -> &[u8] {
        let bytes = self.format.record_bytes();
        &self.data[(tile * self.groups() + group) * bytes..][..bytes]
    }
}

/// `x W^T` in f64 for dense `x` `[m, k]` and `w` `[n, k]`: the measure for every faster version.
pub fn reference(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    x.chunks_exact(k)
        .flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w)))
        .collect()
}
