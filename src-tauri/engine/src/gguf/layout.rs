//! Where the tensors lie in the file, and the proof that they lie there.

use std::ops::Range;
use std::path::Path;

use super::parse::Header;
use super::{GgmlType, GgufError, Result};

/// A tensor as the header describes it, not yet checked.
pub(super) struct RawTensor {
    pub name: String,
    pub ggml_type: GgmlType,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    /// From the start of the data section, in bytes.
    pub offset: u64,
}

/// A tensor of a GGUF file, whose bytes are known to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    ggml_type: GgmlType,
    shape: Vec<usize>,
    shard: usize,
    range: Range<usize>,
}

impl TensorInfo {
    /// Name, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// Row-major shape, outermost dimension first (GGUF's own order reversed): a linear layer is `[out, in]`. At most
    /// four dimensions, none zero; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size of the tensor's data in bytes.
    pub fn byte_count(&self) -> usize {
        self.range.len()
    }

    /// Which of [`GgufFile::shards`](super::GgufFile::shards) holds the tensor.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Position of the data in that shard, in bytes from the start of the file.
    pub fn byte_range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// Turns the header's tensors into checked ones, in file order.
///
/// `file_length` is the size of the shard in bytes.
pub(super) fn check_layout(
    path: &Path,
    shard: usize,
    header: &Header,
    file_length: u64,
) -> Result<Vec<TensorInfo>> {
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for raw in &header.tensors {
        tensors.push(check_tensor(path, shard, header, raw, file_length)?);
    }

    let mut by_position: Vec<&TensorInfo> = tensors.iter().collect();
    by_position.sort_by_key(|tensor| tensor.range.start);
    for pair in by_position.windows(2) {
        if let [left, right] = pair
            && left.range.end > right.range.start
        {
            return Err(invalid(
                path,
                &right.name,
                format!("overlaps with tensor `{}`", left.name),
            ));
        }
    }
    Ok(tensors)
}

fn check_tensor(
    path: &Path,
    shard: usize,
    header: &Header,
    raw: &RawTensor,
    file_length: u64,
) -> Result<TensorInfo> {
    let invalid = |problem: String| invalid(path, &raw.name, problem);
    if let GgmlType::Unknown(id) = raw.ggml_type {
        return Err(invalid(format!(
            "has element type {id}, which is not supported (supported: {})",
            GgmlType::known_names()
        )));
    }
    if raw.shape.contains(&0) {
        return Err(invalid(format!(
            "has shape {:?}, but every dimension must be at least 1",
            raw.shape
        )));
    }
    let block = raw.ggml_type.block_size() as u64;
    let row = raw.shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(block) {
        return Err(invalid(format!(
            "has rows of {row} elements, but {} stores blocks of {block}",
            raw.ggml_type
        )));
    }
    let size = raw
        .shape
        .iter()
        .try_fold(1u64, |product, &dimension| product.checked_mul(dimension))
        .and_then(|elements| (elements / block).checked_mul(raw.ggml_type.type_size() as u64))
        .ok_or_else(|| invalid(format!("has shape {:?}, which no file can hold", raw.shape)))?;
    if !raw.offset.is_multiple_of(header.alignment) {
        return Err(invalid(format!(
            "lies at offset {}, but offsets are multiples of {}",
            raw.offset, header.alignment
        )));
    }

    let start = header.data_start.checked_add(raw.offset);
    let end = start.and_then(|start| start.checked_add(size));
    let (Some(start), Some(end)) = (start, end) else {
        return Err(invalid(format!(
            "lies at offset {}, which no file can reach",
            raw.offset
        )));
    };
    if end > file_length {
        return Err(GgufError::Truncated {
            path: path.to_owned(),
            what: format!("tensor `{}`", raw.name),
            offset: start,
            needed: size,
            remaining: file_length.saturating_sub(start),
        });
    }
    // `end` fits the mapped file, so that everything below it fits usize.
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let shape: Option<Vec<usize>> = raw.shape.iter().map(|&d| usize::try_from(d).ok()).collect();
    let (Some((start, end)), Some(shape)) = (range, shape) else {
        return Err(invalid("is too large for this machine".to_owned()));
    };
    Ok(TensorInfo {
        name: raw.name.clone(),
        ggml_type: raw.ggml_type,
        shape,
        shard,
        range: start..end,
    })
}

fn invalid(path: &Path, tensor: &str, problem: String) -> GgufError {
    GgufError::Invalid {
        path: path.to_owned(),
        what: format!("tensor `{tensor}`"),
        problem,
    }
}
