//! Which tokens end generation.

use std::collections::{BTreeSet, HashSet};

use super::Pipeline;

/// Tokens that end a turn or a document in some chat format, by their text; the list is llama.cpp's.
const ENDS: &[&str] = &[
    "<|eot_id|>",         // Llama 3
    "<|eom_id|>",         // Llama 3, before a tool's answer
    "<|im_end|>",         // ChatML: Qwen, SmolLM, Hermes
    "<|end|>",            // Phi
    "<|return|>",         // Harmony (gpt-oss)
    "<|call|>",           // Harmony
    "<|flush|>",          // Solar
    "<|calls|>",          // Solar
    "<end_of_turn>",      // Gemma
    "<turn|>",            // Gemma 4
    "<|tool_response>",   // Gemma 4
    "<|endoftext|>",      // GPT-2, Qwen base
    "<|end_of_text|>",    // Llama 3 base, Granite
    "<end_of_utterance>", // Idefics, SmolVLM
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",                 // Kimi
    "[EOS]",                 // Kimi
    "<｜end▁of▁sentence｜>", // DeepSeek
    "[e~[",                  // MiniMax
];

/// The ids that end generation, ascending: those that the configuration names, and the special tokens among [`ENDS`].
pub(super) fn stop_ids(
    pipeline: &Pipeline,
    special: &HashSet<u32>,
    configured: Vec<u32>,
) -> Vec<u32> {
    // An ordinary word of the vocabulary may look like one of these (`</s>` is a piece of HTML): special ones only.
    let special_id = |text: &str| pipeline.token_to_id(text).filter(|id| special.contains(id));
    let mut ids: BTreeSet<u32> = ENDS.iter().filter_map(|text| special_id(text)).collect();

    let found = |text: &str| special_id(text).is_some_and(|id| ids.contains(&id));
    let harmony = found("<|return|>") && found("<|call|>");
    let solar = found("<|flush|>") && found("<|calls|>");
    // There, `<|end|>` ends one message of several. Gemma 4 has `</s>` as the HTML tag.
    let not_ends = [
        ("<|end|>", harmony || solar),
        ("</s>", found("<|tool_response>")),
    ];
    for (text, applies) in not_ends {
        if let Some(id) = special_id(text).filter(|_| applies) {
            ids.remove(&id);
        }
    }
    ids.extend(configured);
    ids.into_iter().collect()
}
