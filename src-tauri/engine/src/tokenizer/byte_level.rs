//! The alphabet in which byte-level vocabularies are written: every byte has a printable character.
//!
//! Bytes that print in Latin-1 stand for themselves; the other 68 are, in order, U+0100 and up (GPT-2, Radford et al.
//! 2019).

/// The byte that a character of the alphabet stands for.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        // 0x00..=0x20, 0x7f..=0xa0 and 0xad, in this order.
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The bytes of a token; a token that is not written in the alphabet (an added token) stands for its own text.
pub(super) fn bytes_of(token: String) -> Vec<u8> {
    match token.chars().map(byte_of).collect() {
        Some(bytes) => bytes,
        None => token.into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    #[test]
    fn inverts_the_alphabet_of_the_encoder() {
        // All bytes that occur in UTF-8, through the encoder's own mapping.
        let text: String = ('\0'..'\u{800}')
            .chain(['\u{1f600}', '\u{fffd}', '\u{10ffff}'])
            .collect();
        let mut split = PreTokenizedString::from(text.as_str());
        ByteLevel::new(false, false, false)
            .pre_tokenize(&mut split)
            .unwrap();
        let mapped: String = split
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(piece, _, _)| piece.to_owned())
            .collect();
        assert_eq!(bytes_of(mapped), text.into_bytes());
        let alphabet = ByteLevel::alphabet();
        assert_eq!(alphabet.len(), 256);
        assert!(alphabet.iter().all(|&c| byte_of(c).is_some()));
        let inverse: std::collections::BTreeSet<_> = alphabet.iter().map(|&c| byte_of(c)).collect();
        assert_eq!(inverse.len(), 256);
    }

    #[test]
    fn text_outside_the_alphabet_is_kept() {
        assert_eq!(bytes_of("<｜User｜>".into()), "<｜User｜>".as_bytes());
        assert_eq!(bytes_of("Ġa".into()), b" a");
    }
}
