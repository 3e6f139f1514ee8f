//! What a checkpoint is, told from its headers alone: nothing is loaded.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use super::check::check;
use super::checkpoint::Checkpoint;
use super::files::ModelFiles;
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
        let size = |(dtype, (tensors, bytes))| DtypeSize { dtype, tensors, bytes };
        Ok(Summary {
            name: self.name().to_string(),
            config,
            parameters,
            files: checkpoint.shards().iter().map(file).collect(),
            dtypes: dtypes.into_iter().map(size).collect(),
        })
    }
}
