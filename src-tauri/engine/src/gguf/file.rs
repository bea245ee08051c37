//! Opening GGUF files, one or the shards of a split model.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::layout::{TensorInfo, check_layout};
use super::parse::{Header, parse_header};
use super::{GgufError, Metadata, Result};

/// Split models have five digits in their file names.
const MAX_SHARDS: u64 = 99_999;

/// An open GGUF model: metadata, and tensors whose bytes are proven to be in the mapped files.
///
/// A clone is cheap and shares the mappings. The files must not be truncated by another program while they are open:
/// reading a mapped page that is gone ends the process (as with every memory-mapped model loader).
#[derive(Clone, Debug)]
pub struct GgufFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    version: u32,
    metadata: Metadata,
    shards: Vec<Shard>,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Mmap,
}

impl Shard {
    fn map(path: &Path) -> std::io::Result<Self> {
        // Asked before it is opened: opening a named pipe waits for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "it is not a regular file",
            ));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is read-only and private to this process. The bytes may change under us if another
        // program writes the file; they are only ever read as integers, floats and unchecked bytes, for which every
        // bit pattern is valid, and text is copied out before it is checked to be UTF-8. Truncation by another program
        // is documented on `GgufFile`.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self {
            path: path.to_owned(),
            map,
        })
    }
}

impl GgufFile {
    /// Opens a model. For a split model, `path` may be any of its files; all of them are opened as one, in order.
    ///
    /// # Errors
    /// The file, or a shard of it, cannot be read, is not GGUF of version 2 or 3, is cut short, or has a header that
    /// contradicts itself. The message names the file and the key or tensor.
    pub fn open(path: &Path) -> Result<Self> {
        let first = Shard::map(path).map_err(|source| GgufError::Io {
            path: path.to_owned(),
            source,
        })?;
        let header = parse_header(path, &first.map)?;
        let count = header.metadata.get_u64("split.count")?.unwrap_or(1);
        let parts = if count > 1 {
            open_split(path, count, first, header)?
        } else {
            vec![(first, header)]
        };

        let mut shards = Vec::new();
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut index = HashMap::new();
        let mut version_and_metadata = None;
        for (number, (shard, header)) in parts.into_iter().enumerate() {
            for tensor in check_layout(&shard.path, number, &header, shard.map.len() as u64)? {
                let name = tensor.name().to_owned();
                if index.insert(name.clone(), tensors.len()).is_some() {
                    return Err(GgufError::Invalid {
                        path: shard.path,
                        what: format!("tensor `{name}`"),
                        problem: "stands twice in the tensor list".to_owned(),
                    });
                }
                tensors.push(tensor);
            }
            shards.push(shard);
            version_and_metadata.get_or_insert((header.version, header.metadata));
        }
        let (version, metadata) =
            version_and_metadata.unwrap_or_else(|| (0, Metadata::new(path.display().to_string())));

        if let Some(total) = metadata.get_u64("split.tensors.count")?
            && count > 1
            && total != tensors.len() as u64
        {
            return Err(GgufError::Invalid {
                path: path.to_owned(),
                what: "key `split.tensors.count`".to_owned(),
                problem: format!(
                    "promises {total} tensors, but the {count} files hold {}",
                    tensors.len()
                ),
            });
        }
        Ok(Self(Arc::new(Inner {
            path: path.to_owned(),
            version,
            metadata,
            shards,
            tensors,
            index,
        })))
    }

    /// The path given to [`open`](Self::open).
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The files of the model in order; one unless it is split.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.0.shards.iter().map(|shard| shard.path.as_path())
    }

    /// GGUF version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.0.version
    }

    /// The metadata (of the first shard, which alone carries the model's).
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.0.tensors.iter()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.0
            .index
            .get(name)
            .and_then(|&at| self.0.tensors.get(at))
    }

    /// The bytes of a tensor, straight from the mapped file. They start on the file's alignment, 32 bytes unless it
    /// says otherwise. `info` must come from this file; for one that does not fit it the result is empty.
    pub fn data(&self, info: &TensorInfo) -> &[u8] {
        self.0
            .shards
            .get(info.shard())
            .and_then(|shard| shard.map.get(info.byte_range()))
            .unwrap_or_default()
    }
}

/// Opens all files of a split model, given one of them.
fn open_split(
    path: &Path,
    count: u64,
    opened: Shard,
    header: Header,
) -> Result<Vec<(Shard, Header)>> {
    let invalid = |what: &str, problem: String| GgufError::Invalid {
        path: path.to_owned(),
        what: what.to_owned(),
        problem,
    };
    if count > MAX_SHARDS {
        let problem = format!("is {count}, but at most {MAX_SHARDS} files are supported");
        return Err(invalid("key `split.count`", problem));
    }
    let number = header.metadata.get_u64("split.no")?.unwrap_or(0);
    if number >= count {
        let problem = format!("is {number}, but the model has files 0 to {}", count - 1);
        return Err(invalid("key `split.no`", problem));
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let suffix = shard_suffix(number, count);
    let Some(prefix) = name.and_then(|name| name.strip_suffix(suffix.as_str())) else {
        let problem = format!(
            "belongs to file {} of {count} of a split model, whose name must end in `{suffix}`; give it its original name",
            number + 1
        );
        return Err(invalid("the file", problem));
    };

    let mut parts = Vec::new();
    let mut opened = Some((opened, header));
    for i in 0..count {
        if i == number
            && let Some(part) = opened.take()
        {
            parts.push(part);
            continue;
        }
        let shard_path = path.with_file_name(format!("{prefix}{}", shard_suffix(i, count)));
        let shard = Shard::map(&shard_path).map_err(|source| GgufError::MissingShard {
            path: path.to_owned(),
            shard: shard_path.clone(),
            count,
            source,
        })?;
        let header = parse_header(&shard_path, &shard.map)?;
        let found = (
            header.metadata.get_u64("split.no")?,
            header.metadata.get_u64("split.count")?,
        );
        if found != (Some(i), Some(count)) {
            return Err(GgufError::Invalid {
                path: shard_path,
                what: "keys `split.no` and `split.count`".to_owned(),
                problem: format!(
                    "are {} and {}, but should be {i} and {count}: the file belongs to another model",
                    or_absent(found.0),
                    or_absent(found.1)
                ),
            });
        }
        parts.push((shard, header));
    }
    Ok(parts)
}

fn shard_suffix(number: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

fn or_absent(value: Option<u64>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| value.to_string())
}
