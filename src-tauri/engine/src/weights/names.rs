//! GGUF's tensor names for Hugging Face's.

/// The GGUF name (without suffix) of a Hugging Face module path, for the architectures of this crate. `hybrid`: for those with
/// GatedDeltaNet layers, whose second norm has a name of its own.
pub(crate) fn gguf_name(name: &str, hybrid: bool) -> Option<String> {
    let whole = match name {
        "model.embed_tokens" => Some("token_embd"),
        "model.norm" => Some("output_norm"),
        "lm_head" => Some("output"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.to_string());
    }
    let rest = name.strip_prefix("model.layers.")?;
    let (layer, module) = rest.split_once('.')?;
    let module = match module {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" if hybrid => "post_attention_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "mlp.gate" => "ffn_gate_inp",
        "mlp.experts.gate_proj" => "ffn_gate_exps",
        "mlp.experts.up_proj" => "ffn_up_exps",
        "mlp.experts.down_proj" => "ffn_down_exps",
        "mlp.experts.gate_up_proj" => "ffn_gate_up_exps",
        "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
        "mlp.shared_expert.gate_proj" => "ffn_gate_shexp",
        "mlp.shared_expert.up_proj" => "ffn_up_shexp",
        "mlp.shared_expert.down_proj" => "ffn_down_shexp",
        "linear_attn.in_proj_qkv" => "attn_qkv",
        "linear_attn.in_proj_z" => "attn_gate",
        "linear_attn.in_proj_a" => "ssm_alpha",
        "linear_attn.in_proj_b" => "ssm_beta",
        "linear_attn.conv1d" => "ssm_conv1d",
        "linear_attn.norm" => "ssm_norm",
        "linear_attn.out_proj" => "ssm_out",
        "linear_attn.A_log" => "ssm_a",
        "linear_attn.dt_bias" => "ssm_dt.bias",
        _ => return None,
    };
    Some(format!("blk.{layer}.{module}"))
}

#[cfg(test)]
mod tests {
    use super::gguf_name;

    #[test]
    fn names() {
        assert_eq!(
            gguf_name("model.embed_tokens", false).as_deref(),
            Some("token_embd")
        );
        assert_eq!(
            gguf_name("model.layers.12.self_attn.q_proj", false).as_deref(),
            Some("blk.12.attn_q")
        );
        assert_eq!(
            gguf_name("model.layers.0.mlp.down_proj", false).as_deref(),
            Some("blk.0.ffn_down")
        );
        assert_eq!(gguf_name("model.layers.0.unknown", false), None);
        assert_eq!(gguf_name("something", false), None);
    }

    #[test]
    fn the_second_norm_is_named_by_architecture() {
        let norm = "model.layers.3.post_attention_layernorm";
        assert_eq!(gguf_name(norm, false).as_deref(), Some("blk.3.ffn_norm"));
        assert_eq!(
            gguf_name(norm, true).as_deref(),
            Some("blk.3.post_attention_norm")
        );
    }
}
