//! Ids to text, token by token.

use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{Decoder, DecoderWrapper};

use super::Tokenizer;
use super::byte_level::bytes_of;

/// Decodes a stream of ids: [`push`](Self::push) gives the text that has become certain, [`finish`](Self::finish) the
/// rest. Put together they are what decoding all ids at once gives.
///
/// Held back are the bytes of an incomplete character and, for SentencePiece vocabularies, a run of byte tokens until it
/// ends (a run that is not UTF-8 as a whole becomes one U+FFFD for each byte, as in the `tokenizers` crate). The work for
/// a token does not depend on how many came before.
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    stages: Vec<Stage>,
    skip_special_tokens: bool,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer, stages: Vec<Stage>, skip_special_tokens: bool) -> Self {
        Self {
            tokenizer,
            stages,
            skip_special_tokens,
        }
    }

    /// Takes the next id; returns the text that is now certain, which may be empty. An id without a token gives no text.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        if self.skip_special_tokens && self.tokenizer.is_special(id) {
            return text;
        }
        let token = match self.tokenizer.0.raw_bytes.get(&id) {
            Some(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            None => self.tokenizer.id_to_token(id),
        };
        if let Some(token) = token {
            feed(&mut self.stages, token, &mut text);
        }
        text
    }

    /// The text still held back, an incomplete character as U+FFFD. The decoder is as new afterwards.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        let mut stages = self.stages.as_mut_slice();
        while let Some((stage, rest)) = stages.split_first_mut() {
            for piece in stage.flush() {
                feed(rest, piece, &mut text);
            }
            stages = rest;
        }
        self.stages = self.tokenizer.0.decoder.clone();
        text
    }
}

#[cfg(test)]
impl StreamDecoder {
    /// Bytes that wait for what comes next.
    pub(super) fn held_bytes(&self) -> usize {
        let held = self.stages.iter().map(|stage| match stage {
            Stage::ByteFallback { run } => run.len(),
            Stage::ByteLevel { pending } => pending.len(),
            _ => 0,
        });
        held.sum()
    }
}

/// One step of a decoder, with what it holds back.
///
/// A step takes and gives pieces, one a token at first; after [`Fuse`](DecoderWrapper::Fuse) or
/// [`ByteLevel`](Stage::ByteLevel) all text is one piece, of which steps see a part at a time.
#[derive(Clone)]
pub(super) enum Stage {
    /// Without a decoder, tokens are words.
    JoinWithSpaces {
        first: bool,
    },
    Replace(Replace),
    /// Byte tokens (`<0xE2>`) to bytes.
    ByteFallback {
        run: Vec<u8>,
    },
    /// Removes up to `limit` leading `content` from every piece.
    StripEach {
        content: char,
        limit: usize,
    },
    /// Removes up to `left` leading `content` from the text.
    StripStart {
        content: char,
        left: usize,
    },
    /// U+2581 to a space, and to nothing in the first piece if the tokenizer had put it there.
    Metaspace {
        replacement: char,
        strip_first: bool,
        first: bool,
    },
    /// The alphabet of byte-level vocabularies to bytes, and these to characters.
    ByteLevel {
        pending: Vec<u8>,
    },
}

impl Stage {
    /// The steps of a decoder; an error says which step cannot work on a stream.
    pub(super) fn plan(decoder: Option<&DecoderWrapper>) -> Result<Vec<Self>, String> {
        let Some(decoder) = decoder else {
            return Ok(vec![Self::JoinWithSpaces { first: true }]);
        };
        let mut stages = Vec::new();
        let mut fused = false;
        Self::plan_into(decoder, &mut stages, &mut fused)?;
        Ok(stages)
    }

    fn plan_into(
        decoder: &DecoderWrapper,
        stages: &mut Vec<Self>,
        fused: &mut bool,
    ) -> Result<(), String> {
        let stage = match decoder {
            DecoderWrapper::Sequence(sequence) => {
                for inner in sequence.get_decoders() {
                    Self::plan_into(inner, stages, fused)?;
                }
                return Ok(());
            }
            DecoderWrapper::Fuse(_) => {
                *fused = true;
                return Ok(());
            }
            DecoderWrapper::Strip(strip) if strip.stop == 0 && *fused => Self::StripStart {
                content: strip.content,
                left: strip.start,
            },
            DecoderWrapper::Strip(strip) if strip.stop == 0 => Self::StripEach {
                content: strip.content,
                limit: strip.start,
            },
            DecoderWrapper::Replace(replace) if !*fused => Self::Replace(replace.clone()),
            DecoderWrapper::ByteFallback(_) if !*fused => Self::ByteFallback { run: Vec::new() },
            DecoderWrapper::Metaspace(metaspace) if !*fused => Self::Metaspace {
                replacement: metaspace.get_replacement(),
                strip_first: metaspace.prepend_scheme != PrependScheme::Never,
                first: true,
            },
            DecoderWrapper::ByteLevel(_) if !*fused => {
                *fused = true;
                Self::ByteLevel {
                    pending: Vec::new(),
                }
            }
            other => {
                let kind = match other {
                    DecoderWrapper::BPE(_) => "BPEDecoder",
                    DecoderWrapper::WordPiece(_) => "WordPiece",
                    DecoderWrapper::CTC(_) => "CTC",
                    DecoderWrapper::Strip(_) => "Strip at the end",
                    DecoderWrapper::Replace(_) => "Replace on the whole text",
                    DecoderWrapper::ByteFallback(_) => "ByteFallback on the whole text",
                    DecoderWrapper::Metaspace(_) => "Metaspace on the whole text",
                    _ => "ByteLevel on the whole text",
                };
                return Err(format!(
                    "the decoder {kind} is not supported; supported are ByteLevel, and Sequence, Replace, ByteFallback, \
                     Fuse, Strip and Metaspace as SentencePiece vocabularies use them"
                ));
            }
        };
        stages.push(stage);
        Ok(())
    }

    /// Takes a piece and hands on what it becomes.
    fn take(&mut self, piece: String, emit: &mut dyn FnMut(String)) {
        match self {
            Self::JoinWithSpaces { first } => {
                if !std::mem::take(first) {
                    emit(" ".to_owned());
                }
                emit(piece);
            }
            Self::Replace(replace) => emit(replaced(replace, piece)),
            Self::ByteFallback { run } => match byte_token(&piece) {
                Some(byte) => run.push(byte),
                None => {
                    run_to_text(run).into_iter().for_each(&mut *emit);
                    emit(piece);
                }
            },
            Self::StripEach { content, limit } => {
                let mut left = *limit;
                emit(strip_start(&piece, *content, &mut left).to_owned());
            }
            Self::StripStart { content, left } => {
                emit(strip_start(&piece, *content, left).to_owned());
            }
            Self::Metaspace {
                replacement,
                strip_first,
                first,
            } => {
                let space = match std::mem::take(first) && *strip_first {
                    true => "",
                    false => " ",
                };
                emit(piece.replace(*replacement, space));
            }
            Self::ByteLevel { pending } => {
                pending.extend(bytes_of(piece));
                emit(take_characters(pending));
            }
        }
    }

    /// What is held back, at the end of the text.
    fn flush(&mut self) -> Vec<String> {
        match self {
            Self::ByteFallback { run } => run_to_text(run),
            Self::ByteLevel { pending } if !pending.is_empty() => {
                vec![String::from_utf8_lossy(&std::mem::take(pending)).into_owned()]
            }
            _ => Vec::new(),
        }
    }
}

/// Sends a piece through the stages; what comes out at the end is appended to `text`.
fn feed(stages: &mut [Stage], piece: String, text: &mut String) {
    match stages.split_first_mut() {
        Some((stage, rest)) => stage.take(piece, &mut |piece| feed(rest, piece, text)),
        None => text.push_str(&piece),
    }
}

/// The bytes of one token, whatever stands before and after it.
pub(super) fn piece_bytes(stages: &[Stage], mut token: String) -> Vec<u8> {
    for stage in stages {
        match stage {
            Stage::Replace(replace) => token = replaced(replace, token),
            Stage::Metaspace { replacement, .. } => token = token.replace(*replacement, " "),
            Stage::ByteFallback { .. } => {
                if let Some(byte) = byte_token(&token) {
                    return vec![byte];
                }
            }
            Stage::ByteLevel { .. } => return bytes_of(token),
            Stage::JoinWithSpaces { .. } | Stage::StripEach { .. } | Stage::StripStart { .. } => {}
        }
    }
    token.into_bytes()
}

fn replaced(replace: &Replace, piece: String) -> String {
    match replace.decode_chain(vec![piece.clone()]) {
        Ok(pieces) => pieces.concat(),
        Err(_) => piece,
    }
}

/// The byte of a token such as `<0xE2>`.
pub(super) fn byte_token(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let two = digits.len() == 2;
    two.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The text of a run of byte tokens: itself, or U+FFFD for each byte if it is not UTF-8.
fn run_to_text(run: &mut Vec<u8>) -> Vec<String> {
    if run.is_empty() {
        return Vec::new();
    }
    match String::from_utf8(std::mem::take(run)) {
        Ok(text) => vec![text],
        Err(error) => vec![char::REPLACEMENT_CHARACTER.to_string(); error.as_bytes().len()],
    }
}

fn strip_start<'a>(piece: &'a str, content: char, left: &mut usize) -> &'a str {
    let mut rest = piece;
    while *left > 0 && !rest.is_empty() {
        match rest.strip_prefix(content) {
            Some(stripped) => {
                rest = stripped;
                *left -= 1;
            }
            None => *left = 0,
        }
    }
    rest
}

/// Takes the complete characters from the front of `pending`, with U+FFFD for what can never become one; the start of an
/// incomplete character stays.
fn take_characters(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    while let Some(rest) = pending.get(done..).filter(|rest| !rest.is_empty()) {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                done = pending.len();
            }
            Err(error) => {
                let valid = rest.get(..error.valid_up_to()).unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(valid));
                done += error.valid_up_to();
                match error.error_len() {
                    Some(length) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        done += length;
                    }
                    None => break,
                }
            }
        }
    }
    pending.drain(..done);
    text
}
