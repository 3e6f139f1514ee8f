//! Enlarges a trained model without changing what it computes: the same tokens at the cost of a larger shape, so that speed
//! can be measured without a download.
//!
//! The residual keeps its old values in its first columns and zeros in the rest; norm weights and epsilon make up for the
//! width. Old heads sit among new ones and old layers before new ones, whose output projections are zero. It is exact to the
//! bit where heads keep their width and that of the residual grows by a power of four; else sums within a head come in
//! another order, and a square root is rounded.

mod axis;
mod tensors;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::config::Config;
use crate::load::{Checkpoint, ModelFiles};
use axis::Axes;
use tensors::{Plan, Planner};

/// The dimensions of a Llama model that can grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    /// Positions. More than the model was trained on serve timing only.
    pub max_position: usize,
}

/// Shapes by name: hidden, layers, query heads, key heads, head, feed-forward.
const SHAPES: [(&str, [usize; 6]); 5] = [
    // stories110M
    ("110m", [768, 12, 12, 12, 64, 2048]),
    // as GPT-2 medium, with a gated feed-forward layer
    ("350m", [1024, 24, 16, 8, 64, 2816]),
    // TinyLlama-1.1B
    ("1b", [2048, 22, 32, 4, 64, 5632]),
    // Llama-3.2-3B
    ("3b", [3072, 28, 24, 8, 128, 8192]),
    // Llama-2-13B
    ("13b", [5120, 40, 40, 40, 128, 13824]),
];

impl Shape {
    /// The shape that a model has.
    pub fn of(config: &Config) -> Shape {
        Shape {
            hidden: config.hidden_size,
            layers: config.num_hidden_layers,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            intermediate: config.intermediate_size,
            max_position: config.max_position_embeddings,
        }
    }

    /// The shape of a well-known size, with the positions of `self`.
    ///
    /// # Errors
    /// When the name is none of those.
    pub fn like(self, name: &str) -> Result<Shape> {
        let Some((_, shape)) = SHAPES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = SHAPES.iter().map(|(name, _)| *name).collect();
            bail!("--like {name}: is none of {}", known.join(", "));
        };
        let [hidden, layers, heads, kv_heads, head_dim, intermediate] = *shape;
        Ok(Shape { hidden, layers, heads, kv_heads, head_dim, intermediate, ..self })
    }

    /// Whether a model can grow to this.
    fn check(&self, old: &Config) -> Result<()> {
        let from = Shape::of(old);
        let grows = [
            ("hidden", from.hidden, self.hidden),
            ("layers", from.layers, self.layers),
            ("heads", from.heads, self.heads),
            ("head-dim", from.head_dim, self.head_dim),
            ("intermediate", from.intermediate, self.intermediate),
            ("max-position", 1, self.max_position),
            ("kv-heads", 1, self.kv_heads),
        ];
        for (name, old, new) in grows {
            ensure!(new >= old, "--{name} {new}: a model with {old} cannot shrink; give at least {old}");
        }
        let (dim, heads, kv) = (self.head_dim, self.heads, self.kv_heads);
        ensure!(dim.is_multiple_of(from.head_dim), "--head-dim {dim}: give a multiple of {}", from.head_dim);
        ensure!(heads.is_multiple_of(kv), "--kv-heads {kv}: must divide {heads} query heads");
        Ok(())
    }
}

/// What `grow` has written.
#[derive(Clone, Debug)]
pub struct Grown {
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of `model.safetensors`.
    pub bytes: u64,
}

/// Writes the enlarged model to `folder`, which must be empty or not be there. `progress` is called with the bytes written so
/// far, and those of the whole.
///
/// The same seed gives the same bytes.
///
/// # Errors
/// A model that cannot be read or cannot grow to the shape, a folder that is not empty, a disk that is full. What was begun
/// is taken away again.
pub fn grow(
    files: &ModelFiles,
    shape: &Shape,
    seed: u64,
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Grown> {
    let old = files.config()?;
    shape.check(&old)?;
    let axes = Axes::new(&old, shape)?;
    let checkpoint = Checkpoint::open(files)?;
    crate::load::check(&checkpoint, &old)?;
    let plans = Planner { old: &old, new: shape, axes: &axes, checkpoint: &checkpoint }.plans()?;
    let config = config(files, &old, shape, seed)?;
    let existed = folder.exists();
    let place = || format!("{}", folder.display());
    if existed && fs::read_dir(folder).with_context(place)?.next().is_some() {
        bail!("{}: is not empty; give a new folder", folder.display());
    }
    fs::create_dir_all(folder).with_context(place)?;
    let written = write(files, &config, folder)
        .and_then(|()| weights(&plans, &checkpoint, seed, &folder.join("model.safetensors"), progress));
    if written.is_err() {
        // The error that counts is the first one.
        let _ = if existed { clear(folder) } else { fs::remove_dir_all(folder) };
    }
    written.with_context(place)
}

/// Takes the files out of a folder that was there before.
fn clear(folder: &Path) -> std::io::Result<()> {
    fs::read_dir(folder)?.flatten().try_for_each(|entry| fs::remove_file(entry.path()))
}

/// The files beside the weights.
fn write(files: &ModelFiles, config: &Value, folder: &Path) -> Result<()> {
    let save = |file: &str, bytes: &[u8]| fs::write(folder.join(file), bytes).with_context(|| file.to_string());
    save("config.json", format!("{config:#}\n").as_bytes())?;
    save("tokenizer.json", &files.read("tokenizer.json")?)?;
    for file in ["tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "chat_template.jinja"] {
        if let Some(bytes) = files.read_if_there(file)? {
            save(file, &bytes)?;
        }
    }
    Ok(())
}

/// The configuration of the enlarged model, which says where it comes from.
fn config(files: &ModelFiles, old: &Config, shape: &Shape, seed: u64) -> Result<Value> {
    let mut config: Value = serde_json::from_slice(&files.read("config.json")?).context("config.json")?;
    let eps = old.rms_norm_eps * old.hidden_size as f64 / shape.hidden as f64;
    let changes = json!({
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": eps,
        "grown": {
            "by": concat!("specquant ", env!("CARGO_PKG_VERSION")),
            "from": files.name(),
            "seed": seed,
            "trained_positions": old.max_position_embeddings,
        },
    });
    for (key, value) in changes.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    Ok(config)
}

/// Writes the tensors one after another, to a name of its own until the last byte is there.
fn weights(
    plans: &[Plan<'_>],
    checkpoint: &Checkpoint<'_>,
    seed: u64,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Grown> {
    let (header, total) = header(plans)?;
    let partial = path.with_extension("partial");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
    file.write_all(&header)?;
    let mut done = 0;
    for plan in plans {
        plan.rows(checkpoint, seed, &mut |bytes| {
            done += bytes.len() as u64;
            file.write_all(bytes).context("model.safetensors")
        })?;
        progress(done, total);
    }
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&partial, path)?;
    let parameters = plans.iter().map(|plan| plan.elements() as u64).sum();
    Ok(Grown { parameters, bytes: total + header.len() as u64 })
}

/// The beginning of a safetensors file: length, names, types, shapes and places; and the bytes that follow.
fn header(plans: &[Plan<'_>]) -> Result<(Vec<u8>, u64)> {
    let (mut tensors, mut at) = (BTreeMap::new(), 0u64);
    tensors.insert("__metadata__".to_string(), json!({ "format": "pt" }));
    for plan in plans {
        let end = at + (plan.elements() * plan.dtype.bytes()) as u64;
        let entry = json!({ "dtype": plan.stored(), "shape": plan.shape, "data_offsets": [at, end] });
        tensors.insert(plan.name.clone(), entry);
        at = end;
    }
    let mut text = serde_json::to_vec(&tensors)?;
    // As the format advises, data begins at a multiple of eight.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    Ok((header, at))
}
