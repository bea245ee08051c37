//! Token counts on disk.
//!
//! All numbers little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `HSTOKCNT` |
//! | 4 | version, 1 |
//! | 4 | tokens of the vocabulary |
//! | 8 | the tokenizer's fingerprint, as the caller makes it |
//! | 4 | entries |
//! | 8 each | token (ascending), count (`f32`, more than 0) |
//! | 8 | FNV-1a of everything before |
//!
//! The file is a cache: one that cannot be used is reported in the log and replaced.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use super::TokenCounts;

const MAGIC: &[u8; 8] = b"HSTOKCNT";
const VERSION: u32 = 1;
const HEADER: usize = 28;
const ENTRY: usize = 8;
const CHECKSUM: usize = 8;
/// A count below this fraction of a generated token is not worth its eight bytes.
const LEAST_COUNT: f32 = 1e-3;

impl TokenCounts {
    /// The counts saved at `path` for a tokenizer of `vocab` tokens with this `fingerprint`. None there: a fresh start. A damaged
    /// file, or another tokenizer's, is a fresh start with a warning in the log.
    pub fn load(path: &Path, vocab: usize, fingerprint: u64) -> Self {
        match read(path, vocab, fingerprint) {
            Ok(Some(counts)) => counts,
            Ok(None) => Self::new(vocab),
            Err(reason) => {
                tracing::warn!(
                    "The token counts in {} cannot be used ({reason}); counting starts afresh.",
                    path.display()
                );
                Self::new(vocab)
            }
        }
    }

    /// Saves the counts at `path`: written beside it, then renamed, so that a reader finds either the old file or the new one. The folder
    /// must exist.
    ///
    /// # Errors
    /// When the file cannot be written; the old one is left as it was.
    pub fn save(&self, path: &Path, fingerprint: u64) -> io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let write = WRITES.fetch_add(1, Ordering::Relaxed);
        let partial =
            path.with_file_name(format!(".{name}.partial-{}-{write}", std::process::id()));
        let saved = File::create(&partial)
            .and_then(|mut file| {
                file.write_all(&self.bytes(fingerprint))?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&partial, path));
        if saved.is_err() {
            // The error at hand matters more than one of tidying up.
            let _ = fs::remove_file(&partial);
        }
        saved
    }

    pub(super) fn bytes(&self, fingerprint: u64) -> Vec<u8> {
        let mut counts = self.clone();
        counts.normalise();
        let entries: Vec<(u32, f32)> = (0..)
            .zip(counts.counts)
            .filter(|&(_, count)| count >= LEAST_COUNT)
            .collect();
        let mut bytes = Vec::with_capacity(HEADER + entries.len() * ENTRY + CHECKSUM);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.counts_len()).to_le_bytes());
        bytes.extend_from_slice(&fingerprint.to_le_bytes());
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        for (token, count) in entries {
            bytes.extend_from_slice(&token.to_le_bytes());
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        let checksum = fnv1a(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn counts_len(&self) -> u32 {
        u32::try_from(self.counts.len()).unwrap_or(u32::MAX)
    }
}

pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `Ok(None)`: there is no file. `Err`: why it cannot be used.
fn read(path: &Path, vocab: usize, fingerprint: u64) -> Result<Option<TokenCounts>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    // No more than a full table's worth is read, whatever the file says.
    let most = HEADER + vocab.saturating_mul(ENTRY) + CHECKSUM;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    parse(&bytes, vocab, fingerprint).map(Some)
}

fn parse(bytes: &[u8], vocab: usize, fingerprint: u64) -> Result<TokenCounts, String> {
    let damaged = || "it is damaged".to_string();
    if !bytes.starts_with(MAGIC) || bytes.len() < HEADER + CHECKSUM {
        return Err("it is not a file of token counts".into());
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Err(format!("its version is {version}, not {VERSION}"));
    }
    if u32_at(bytes, 12) as usize != vocab || u64_at(bytes, 16) != fingerprint {
        return Err("it belongs to another tokenizer".into());
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    let (entries, rest) = content[HEADER..].as_chunks::<ENTRY>();
    if !rest.is_empty()
        || entries.len() != u32_at(bytes, 24) as usize
        || fnv1a(content) != u64_at(checksum, 0)
    {
        return Err(damaged());
    }
    let mut counts = TokenCounts::new(vocab);
    for entry in entries {
        let (token, count) = (u32_at(entry, 0), f32::from_bits(u32_at(entry, 4)));
        let place = counts
            .counts
            .get_mut(token as usize)
            .filter(|_| count.is_finite() && count > 0.0);
        *place.ok_or_else(damaged)? = count;
    }
    counts.normalise();
    Ok(counts)
}

/// The number at `place`, which lies within `bytes`.
fn u32_at(bytes: &[u8], place: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[place..place + 4]);
    u32::from_le_bytes(four)
}

/// The number at `place`, which lies within `bytes`.
fn u64_at(bytes: &[u8], place: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[place..place + 8]);
    u64::from_le_bytes(eight)
}
