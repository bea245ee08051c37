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
    pub ignore_merges: bool,
    /// The BOS token comes first unless the file says otherwise.
    pub add_bos: bool,
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

/// The cased letters of DeepSeek LLM's word pattern: those of Unicode's `Ll`, `Lu` and `Lt` that are in alphabets with
/// case, written out in its `tokenizer.json`.
const DEEPSEEK_LLM_WORDS: &str = concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ",
    r"ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ",
    r"𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
);

const CJK_AND_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
/// CJK, and most of the letters without case below it.
const CJK_AND_HANGUL: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";

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
            Step::Pattern("\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+"),
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
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString};

    fn words(name: &str, text: &str) -> Vec<String> {
        use tokenizers::PreTokenizer as _;
        let mut split = PreTokenizedString::from(text);
        let pre_tokenizer = PreTokenizer::named(name).unwrap().build().unwrap();
        pre_tokenizer.pre_tokenize(&mut split).unwrap();
        split
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(_, (start, end), _)| text[start..end].to_owned())
            .collect()
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "Hello'Ve world 1234\n\n  foo—bar 你好、ひらがな 한국어 e\u{301}é\u{1f600}\t\tx² $5+`a` HTTPServer  ";
        for name in pre_tokenizer_names() {
            assert_eq!(words(name, text).concat(), text, "{name}");
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
