//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`.
//!
//! A pre-tokenizer cuts a text into words before byte-pair encoding, so that no token crosses a cut. The patterns are
//! those of the models' own `tokenizer.json`; the names, and which models share a pattern, are llama.cpp's.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// One cut after another; the last is always the mapping to the byte-level alphabet.
#[derive(Clone, Copy)]
enum Step {
    /// Matches of a pattern stand alone.
    Pattern(&'static str),
    /// Every digit stands alone.
    EachDigit,
    /// Runs of digits stand alone.
    DigitRuns,
    /// Runs of punctuation stand alone.
    PunctuationRuns,
    /// The words of GPT-2, then the byte-level alphabet.
    Gpt2Words,
    /// The byte-level alphabet only.
    Bytes,
}

/// How text of a byte-level BPE vocabulary is prepared.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Text is first brought to Unicode normal form C.
    nfc: bool,
    /// A word that is in the vocabulary is one token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// The BOS token comes first unless the file says otherwise.
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Llama 3 and cl100k: digits in groups of three.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// As Qwen 2, with combining marks as part of words.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Mistral's Tekken: words also end where lower case turns to upper case.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// o200k.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// o200k with runs of Chinese characters apart.
const KIMI_K2: &str = concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const DEEPSEEK_V3_WORDS: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The words of DeepSeek LLM: letters that have case, as its `tokenizer.json` lists them.
const DEEPSEEK_LLM_WORDS: &str = concat!(
    "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
    "\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}",
    "\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}",
    "\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}",
    "\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}",
    "\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}",
    "\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}",
    "\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}",
    "\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}",
    "\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}",
    "\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}",
    "\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}",
    "\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}",
    "\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
);
const DEEPSEEK_LLM_PUNCTUATION: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";

const CJK_AND_KANA: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
/// CJK and Hangul, with what lies between the scripts from U+0800 on.
const CJK_AND_HANGUL: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";

/// Numbers are cut before.
const MINICPM5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);

const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);

const TABLE: &[PreTokenizer] = &[
    // Not a model's own: what files were given that had no name yet.
    PreTokenizer {
        names: &["default"],
        steps: &[
            Step::Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Pattern(GPT2),
            Step::Pattern(r"\p{N}+"),
            Step::Pattern("[0-9][0-9][0-9]"),
            Step::Bytes,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "trillion",
            "jais",
            "granite-docling",
        ],
        steps: &[Step::Gpt2Words],
        ..PLAIN
    },
    PreTokenizer {
        names: &["mpt", "olmo"],
        steps: &[Step::Gpt2Words],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        steps: &[Step::EachDigit, Step::Gpt2Words],
        ..PLAIN
    },
    PreTokenizer {
        names: &["command-r"],
        steps: &[Step::EachDigit, Step::Gpt2Words],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["falcon"],
        steps: &[
            Step::PunctuationRuns,
            Step::Gpt2Words,
            Step::DigitRuns,
            Step::Pattern("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        steps: &[Step::Pattern(LLAMA3), Step::Bytes],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"],
        steps: &[Step::Pattern(LLAMA3), Step::Bytes],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"],
        steps: &[Step::Pattern(QWEN2), Step::Bytes],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["hunyuan", "solar-open", "grok-2"],
        steps: &[Step::Pattern(QWEN2), Step::Bytes],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen35"],
        steps: &[Step::Pattern(QWEN35), Step::Bytes],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        steps: &[Step::Pattern(TEKKEN), Step::Bytes],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        steps: &[Step::Pattern(GPT4O), Step::Bytes],
        ..PLAIN
    },
    PreTokenizer {
        names: &["kimi-k2"],
        steps: &[Step::Pattern(KIMI_K2), Step::Bytes],
        ..PLAIN
    },
    PreTokenizer {
        names: &["minicpm5"],
        steps: &[
            Step::Pattern(r"\p{N}{1,3}"),
            Step::Pattern(MINICPM5),
            Step::Bytes,
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        steps: &[
            Step::Pattern(r"\p{N}{1,3}"),
            Step::Pattern(CJK_AND_KANA),
            Step::Pattern(DEEPSEEK_V3_WORDS),
            Step::Bytes,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        steps: &[
            Step::Pattern(r"[\r\n]"),
            Step::Pattern(DEEPSEEK_LLM_WORDS),
            Step::Pattern(DEEPSEEK_LLM_PUNCTUATION),
            Step::Pattern(r"\s+$"),
            Step::Pattern(CJK_AND_HANGUL),
            Step::EachDigit,
            Step::Bytes,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        steps: &[
            Step::Pattern(r"[\r\n]"),
            Step::Pattern(r"\s?\p{L}+"),
            Step::Pattern(r"\s?\p{P}+"),
            Step::Pattern(CJK_AND_HANGUL),
            Step::EachDigit,
            Step::Bytes,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["exaone-moe"],
        steps: &[Step::Pattern(EXAONE_MOE), Step::Bytes],
        ..PLAIN
    },
    PreTokenizer {
        names: &["seed-coder"],
        steps: &[Step::Pattern(SEED_CODER), Step::Bytes],
        ..PLAIN
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Step::Pattern(BAILING), Step::Bytes],
        ..PLAIN
    },
];

const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    steps: &[],
    nfc: false,
    ignore_merges: false,
    add_bos: false,
};

/// All values of `tokenizer.ggml.pre` that are supported, sorted.
pub fn pre_tokenizer_names() -> Vec<&'static str> {
    let mut names: Vec<_> = TABLE
        .iter()
        .flat_map(|entry| entry.names)
        .copied()
        .collect();
    names.sort_unstable();
    names
}

impl PreTokenizer {
    /// The pre-tokenizer of a name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|entry| entry.names.contains(&name))
    }

    /// The normalizer, if it has one.
    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then(|| NFC.into())
    }

    /// The cuts, for the pipeline.
    pub(super) fn build(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let step = |step: &Step| -> tokenizers::Result<PreTokenizerWrapper> {
            Ok(match *step {
                Step::Pattern(pattern) => Split::new(
                    SplitPattern::Regex(pattern.to_owned()),
                    SplitDelimiterBehavior::Isolated,
                    false,
                )?
                .into(),
                Step::EachDigit => Digits::new(true).into(),
                Step::DigitRuns => Digits::new(false).into(),
                Step::PunctuationRuns => {
                    Punctuation::new(SplitDelimiterBehavior::Contiguous).into()
                }
                Step::Gpt2Words => ByteLevel::new(false, true, true).into(),
                Step::Bytes => ByteLevel::new(false, true, false).into(),
            })
        };
        let steps: tokenizers::Result<Vec<_>> = self.steps.iter().map(step).collect();
        Ok(Sequence::new(steps?).into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::byte_level::bytes_of;
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString};

    fn split(name: &str, text: &str) -> PreTokenizedString {
        use tokenizers::PreTokenizer as _;
        let mut split = PreTokenizedString::from(text);
        let pre_tokenizer = PreTokenizer::named(name).unwrap().build().unwrap();
        pre_tokenizer.pre_tokenize(&mut split).unwrap();
        split
    }

    fn words(name: &str, text: &str) -> Vec<String> {
        split(name, text)
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(_, (start, end), _)| text[start..end].to_owned())
            .collect()
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "Hello'Ve world 1234\n\n  foo—bar 你好、ひらがな 한국어 e\u{301}é\u{1f600}\t\tx² $5+`a` HTTPServer  ";
        for name in pre_tokenizer_names() {
            // Falcon cuts inside of characters, so that words are compared as bytes.
            let bytes: Vec<u8> = split(name, text)
                .get_splits(OffsetReferential::Original, OffsetType::Byte)
                .into_iter()
                .flat_map(|(word, _, _)| bytes_of(word.to_owned()))
                .collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), text, "{name}");
        }
        let names = pre_tokenizer_names();
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(names, unique);
        assert!(PreTokenizer::named("no-such").is_none());
    }

    #[track_caller]
    fn check(name: &str, text: &str, expected: &[&str]) {
        assert_eq!(words(name, text), expected, "{name}");
    }

    #[test]
    fn families_cut_digits_their_own_way() {
        let text = "a 12345";
        check("gpt-2", text, &["a", " 12345"]);
        check("smollm", text, &["a", " ", "1", "2", "3", "4", "5"]);
        check("llama-bpe", text, &["a", " ", "123", "45"]);
        check("qwen2", text, &["a", " ", "1", "2", "3", "4", "5"]);
        check("qwen35", text, &["a", " ", "1", "2", "3", "4", "5"]);
        check("tekken", text, &["a", " ", "1", "2", "3", "4", "5"]);
        check("gpt-4o", text, &["a", " ", "123", "45"]);
        check("deepseek-v3", text, &["a", " ", "123", "45"]);
        check("deepseek-coder", text, &["a", " ", "1", "2", "3", "4", "5"]);
        check("falcon", text, &["a", " ", "123", "45"]);
        check("default", text, &["a", " ", "123", "45"]);
    }

    #[test]
    fn families_cut_words_their_own_way() {
        check("llama-bpe", "I'M don't", &["I", "'M", " don", "'t"]);
        check("gpt-2", "I'M don't", &["I", "'", "M", " don", "'t"]);
        check("gpt-4o", "I'M don't", &["I'M", " don't"]);
        check(
            "tekken",
            "camelCase HTTPServer",
            &["camel", "Case", " HTTPServer"],
        );
        check("gpt-4o", "camelCase", &["camel", "Case"]);
        check("qwen2", "x\n\n  y", &["x", "\n\n", " ", " y"]);
        check("seed-coder", "x;\n\ny", &["x", ";", "\n\n", "y"]);
        check("qwen2", "x;\n\ny", &["x", ";\n\n", "y"]);
        check("falcon", "a+=b`c", &["a", "+=", "b", "`", "c"]);
        check("default", "a+=b", &["a", "+=", "b"]);
        check(
            "deepseek-v3",
            "(foo 你好kana",
            &["(foo", " ", "你好", "kana"],
        );
        check("deepseek-coder", "a, b", &["a", ",", " b"]);
        check("deepseek-llm", "a, b  ", &["a", ",", " b", "  "]);
        check("kimi-k2", "abc你好def", &["abc", "你好", "def"]);
        check("gpt-4o", "abc你好def", &["abc你好def"]);
    }

    #[test]
    fn combining_marks_are_part_of_words_in_qwen35_only() {
        // Devanagari: letter, vowel sign, letter, virama, letter.
        check("qwen35", "हिन्दी x", &["हिन्दी", " x"]);
        check("qwen2", "हिन्दी x", &["ह", "िन", "्द", "ी", " x"]);
    }
}
