//! What a configuration may ask for that changes the arithmetic and that this crate does not compute.
//!
//! Every such field is refused by its name unless its value changes nothing, so that no model is measured as another one.

use anyhow::Result;
use serde_json::Value;

use super::fields::Fields;

/// The values of a field that change nothing.
#[derive(Clone, Copy)]
enum Neutral {
    /// `false`, or no value.
    Off,
    /// A factor of one.
    One,
    /// Zero, or no value.
    Zero,
    /// At most one of something.
    AtMostOne,
    /// No value at all.
    Absent,
}

/// Fields of configurations in use that change what a decoder computes, with the families that write them.
const FIELDS: [(&str, Neutral); 47] = [
    // Biases.
    ("attention_bias", Neutral::Off),
    ("mlp_bias", Neutral::Off),
    ("attention_out_bias", Neutral::Off),
    ("attention_qkv_bias", Neutral::Off),
    ("qkv_bias", Neutral::Off),
    ("use_bias", Neutral::Off),
    ("bias", Neutral::Off),
    ("lm_head_bias", Neutral::Off),
    // Granite, MiniCPM, Cohere, Gemma: factors on the way from the embedding to the logits.
    ("embedding_multiplier", Neutral::One),
    ("residual_multiplier", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("logit_scale", Neutral::One),
    ("scale_emb", Neutral::One),
    ("embedding_scale", Neutral::One),
    ("scale_depth", Neutral::Absent),
    ("dim_model_base", Neutral::Absent),
    ("mup_width_multiplier", Neutral::One),
    ("lm_head_multiplier", Neutral::One),
    ("final_logit_softcapping", Neutral::Zero),
    ("attn_logit_softcapping", Neutral::Zero),
    ("logits_soft_cap", Neutral::Zero),
    // OLMo, Qwen3 and others: norms and bounds inside attention.
    ("clip_qkv", Neutral::Zero),
    ("use_qk_norm", Neutral::Off),
    ("qk_norm", Neutral::Off),
    ("qk_layernorm", Neutral::Off),
    ("attn_temperature_tuning", Neutral::Zero),
    ("attention_sinks", Neutral::Off),
    ("add_unit_offset", Neutral::Off),
    // GPT-NeoX, Falcon, Phi: parallel residuals.
    ("use_parallel_residual", Neutral::Off),
    ("parallel_residual", Neutral::Off),
    ("parallel_attn", Neutral::Off),
    ("parallel_attention", Neutral::Off),
    // Positions.
    ("alibi", Neutral::Off),
    ("partial_rotary_factor", Neutral::One),
    ("rotary_pct", Neutral::One),
    ("rope_pct", Neutral::One),
    ("rope_ratio", Neutral::One),
    ("rope_interleave", Neutral::Off),
    ("rope_interleaved", Neutral::Off),
    ("no_rope_layers", Neutral::Absent),
    ("rope_local_base_freq", Neutral::Absent),
    // Mixtures of experts.
    ("num_local_experts", Neutral::AtMostOne),
    ("num_experts", Neutral::AtMostOne),
    ("n_routed_experts", Neutral::AtMostOne),
    ("num_experts_per_tok", Neutral::AtMostOne),
    ("moe_intermediate_size", Neutral::Absent),
    ("cross_attention_layers", Neutral::Absent),
];

/// Refuses the first field that asks for what is not computed in a model with heads of so many elements and `context` positions.
pub(super) fn refuse(fields: &Fields, head_dim: usize, context: usize) -> Result<()> {
    for (key, neutral) in FIELDS {
        let Some(value) = fields.get(key).filter(|value| !neutral.allows(value)) else { continue };
        return Err(fields.refuse(
            key,
            value,
            &format!("this cannot be computed, and leaving it out would change the output; {}", neutral.remedy()),
        ));
    }
    scores(fields, head_dim)?;
    window(fields, context)
}

impl Neutral {
    fn allows(self, value: &Value) -> bool {
        let number = |wanted: fn(f64) -> bool| value.as_f64().is_some_and(wanted);
        match self {
            Neutral::Off => value == &Value::Bool(false),
            Neutral::One => number(|n| n == 1.0),
            Neutral::Zero => value == &Value::Bool(false) || number(|n| n == 0.0),
            Neutral::AtMostOne => number(|n| n <= 1.0),
            Neutral::Absent => value.as_array().is_some_and(Vec::is_empty),
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Neutral::Off => "use a checkpoint without it",
            Neutral::One => "only 1 can be run",
            Neutral::Zero => "only 0 or null can be run",
            Neutral::AtMostOne => "only models without experts can be run",
            Neutral::Absent => "only models without it can be run",
        }
    }
}

/// Factors on attention scores other than 1 / sqrt(head_dim).
fn scores(fields: &Fields, head_dim: usize) -> Result<()> {
    let usual = (head_dim as f64).powf(-0.5);
    for (key, expected) in
        [("attention_multiplier", usual), ("attention_scale", usual), ("query_pre_attn_scalar", head_dim as f64)]
    {
        let Some(value) = fields.get(key) else { continue };
        if !value.as_f64().is_some_and(|found| (found / expected - 1.0).abs() < 1e-6) {
            return Err(fields.refuse(
                key,
                value,
                &format!("only {expected}, which is that of head_dim {head_dim}, can be run"),
            ));
        }
    }
    Ok(())
}

/// Attention that does not see all that came before. A window that the context fits into, or that is switched off, is none.
fn window(fields: &Fields, context: usize) -> Result<()> {
    if let Some(layers) = fields.get("layer_types") {
        let full = |kind: &Value| kind == "full_attention";
        if !layers.as_array().is_some_and(|layers| layers.iter().all(full)) {
            return Err(fields.refuse("layer_types", layers, "only layers of full_attention can be run"));
        }
        return Ok(());
    }
    let Some(window) = fields.whole("sliding_window", 0..=usize::MAX)? else { return Ok(()) };
    if fields.flag("use_sliding_window")? == Some(false) || window == 0 || window >= context {
        return Ok(());
    }
    let remedy = format!(
        "attention within a window cannot be run; where the model does not use it, say use_sliding_window false, or set \
         max_position_embeddings, now {context}, to {window}"
    );
    Err(fields.refuse("sliding_window", &Value::from(window), &remedy))
}
