//! What a checkpoint is, told from its headers alone: nothing is loaded.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use specquant_core::{KvDtype, Memory, Text, WeightFormat};

use super::check::{EMBEDDING, check, expected};
use super::checkpoint::Checkpoint;
use super::files::{Entry, ModelFiles};
use super::weights::looks_like_weights;
use crate::config::Config;

/// A checked checkpoint in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The folder's name, or `bundled target`.
    pub name: String,
    /// The shape.
    pub config: Config,
    /// Elements of all tensors that are used; a tied head counts once.
    pub parameters: u64,
    /// The safetensors files.
    pub files: Vec<FileSize>,
    /// Weights in the folder that are not read: other formats, strays, folders such as `original`, which count no bytes.
    pub unread: Vec<FileSize>,
    /// How the files were read where they leave something open, in sentences.
    pub notes: Vec<String>,
    /// What the tokenizer puts before every text, as ids; none without a tokenizer.
    pub begins_with: Vec<u32>,
    /// What the tensors are made of, by element type.
    pub dtypes: Vec<DtypeSize>,
}

/// One safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSize {
    /// Its name in the folder.
    pub file: String,
    /// Its length.
    pub bytes: u64,
}

/// The tensors of one element type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DtypeSize {
    /// The type as safetensors spells it, such as `BF16`.
    pub dtype: String,
    /// How many tensors have it.
    pub tensors: usize,
    /// Bytes of their elements.
    pub bytes: u64,
}

impl ModelFiles {
    /// Bytes that the loaded model will hold, without padding: what `load` would count, told from the headers alone.
    ///
    /// # Errors
    /// As `summary`.
    pub fn footprint(&self, weights: WeightFormat, kv_dtype: KvDtype, kv_slots: usize) -> Result<Memory> {
        let config = self.config()?;
        let checkpoint = Checkpoint::open(self)?;
        check(&checkpoint, &config)?;
        let table = checkpoint.matrix(EMBEDDING)?.bytes.len() as u64;
        let (mut matrices, mut vectors) = (0, 0);
        for (name, shape) in expected(&config) {
            match shape[..] {
                [width] => vectors += width as u64,
                // The head of a tied model is packed apart from the table.
                [outputs, inputs] if name != EMBEDDING || config.tie_word_embeddings => {
                    matrices += weights.bytes(outputs, inputs);
                }
                _ => {}
            }
        }
        let kv = 2 * config.num_hidden_layers * config.kv_width() * kv_slots * kv_dtype.bytes();
        Ok(Memory { matrices, matrices_exact: matrices, embedding: table + 4 * vectors, kv: kv as u64 })
    }

    /// Reads and checks configuration and headers.
    ///
    /// # Errors
    /// As `load`, except for what only the weights themselves can show.
    pub fn summary(&self) -> Result<Summary> {
        let config = self.config()?;
        let checkpoint = Checkpoint::open(self)?;
        let parameters = check(&checkpoint, &config)?;
        let mut dtypes = BTreeMap::<String, (usize, u64)>::new();
        for stored in checkpoint.tensors().values() {
            let (tensors, bytes) = dtypes.entry(stored.dtype.to_string()).or_default();
            *tensors += 1;
            *bytes += checkpoint.bytes(stored).len() as u64;
        }
        let file = |shard: &super::checkpoint::Shard<'_>| FileSize {
            file: shard.file.clone(),
            bytes: shard.bytes.len() as u64,
        };
        let read = |entry: &Entry| checkpoint.shards().iter().any(|shard| shard.file == entry.name);
        let unread = self.entries()?.into_iter().filter(|entry| looks_like_weights(entry) && !read(entry));
        let unread = unread.map(|Entry { name, bytes, folder }| FileSize {
            file: if folder { format!("{name}/") } else { name },
            bytes,
        });
        let tokenizer = self.read_if_there("tokenizer.json")?.map(|_| self.tokenizer()).transpose()?;
        let notes = self.notes_on(&checkpoint, &config, tokenizer.as_ref())?;
        let size = |(dtype, (tensors, bytes))| DtypeSize { dtype, tensors, bytes };
        Ok(Summary {
            name: self.name().to_string(),
            config,
            parameters,
            files: checkpoint.shards().iter().map(file).collect(),
            unread: unread.collect(),
            notes,
            begins_with: tokenizer.map_or(Vec::new(), |tokenizer| tokenizer.template().before.clone()),
            dtypes: dtypes.into_iter().map(size).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use specquant_core::Quantizer;
    use specquant_kernels::{Isa, Team};

    use super::*;
    use crate::{LoadOptions, bundled, load};

    #[test]
    fn memory_is_told_before_it_is_taken() {
        let all = WeightFormat::ALL.into_iter().flat_map(|weights| [("target", weights), ("draft", weights)]);
        for (role, weights) in all {
            let files = bundled(role).unwrap();
            let (kv_dtype, kv_slots, team) = (KvDtype::F16, 64, Team::new(1, Isa::detect()).unwrap());
            let told = files.footprint(weights, kv_dtype, kv_slots).unwrap();
            let taken = load(&files, &LoadOptions { weights, quantizer: Quantizer::Rtn, kv_dtype, kv_slots, team })
                .unwrap()
                .info()
                .memory;
            assert_eq!(told.embedding, taken.embedding, "{role}");
            assert_eq!(told.matrices, taken.matrices_exact, "{role} in {weights}");
            for (told, taken) in [(told.matrices, taken.matrices), (told.kv, taken.kv)] {
                let padding = taken as f64 / told as f64 - 1.0;
                assert!((0.0..0.02).contains(&padding), "{role} in {weights}: {told} told, {taken} taken");
            }
        }
    }
}
