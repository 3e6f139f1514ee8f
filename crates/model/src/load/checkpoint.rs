//! The tensors of a checkpoint, in one safetensors file or in the shards that an index names.
//!
//! A checkpoint that exists has whole files: every tensor's bytes are there, and none is in two files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype as StoredDtype;
use safetensors::tensor::Metadata;
use serde_json::Value;
use specquant_kernels::{DenseMatrix, Dtype};

use super::files::{Content, ModelFiles};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All tensors of a checkpoint; the files stay mapped as long as it lives.
pub(crate) struct Checkpoint<'a> {
    pub(crate) place: String,
    shards: Vec<Shard<'a>>,
    tensors: BTreeMap<String, Stored>,
}

pub(crate) struct Shard<'a> {
    pub(crate) file: String,
    pub(crate) bytes: Content<'a>,
}

/// Where a tensor is and what it is.
pub(crate) struct Stored {
    shard: usize,
    range: Range<usize>,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: StoredDtype,
}

impl<'a> Checkpoint<'a> {
    /// Maps the files and reads their headers.
    ///
    /// # Errors
    /// A file that is missing, truncated or not safetensors, or a shard that does not hold what the index says.
    pub(crate) fn open(files: &'a ModelFiles) -> Result<Checkpoint<'a>> {
        let mut checkpoint = Checkpoint { place: files.place(), shards: Vec::new(), tensors: BTreeMap::new() };
        if let Some(bytes) = files.read_if_there(WEIGHTS)? {
            checkpoint.add(WEIGHTS, bytes)?;
            return Ok(checkpoint);
        }
        let Some(index) = files.read_if_there(INDEX)? else {
            bail!(
                "{}: neither {WEIGHTS} nor {INDEX} is there; convert the checkpoint to safetensors if it has only \
                 pytorch_model.bin",
                checkpoint.place
            );
        };
        let weight_map = weight_map(&index).with_context(|| format!("{}: {INDEX}", checkpoint.place))?;
        for file in weight_map.values().collect::<BTreeSet<_>>() {
            let bytes = files.read(file).with_context(|| format!("{INDEX} names {file}"))?;
            checkpoint.add(file, bytes)?;
        }
        for (tensor, file) in &weight_map {
            let found = checkpoint.tensors.get(tensor).map(|stored| &checkpoint.shards[stored.shard].file);
            ensure!(
                found == Some(file),
                "{}: {INDEX} says that `{tensor}` is in {file}; it is {}",
                checkpoint.place,
                found.map_or("in no file".to_string(), |found| format!("in {found}"))
            );
        }
        Ok(checkpoint)
    }

    fn add(&mut self, file: &str, bytes: Content<'a>) -> Result<()> {
        let (start, metadata) = read_header(&bytes).with_context(|| format!("{}: {file}", self.place))?;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            let (from, to) = info.data_offsets;
            let range = start + from..start + to;
            let stored = Stored { shard, range, shape: info.shape.clone(), dtype: info.dtype };
            if let Some(other) = self.tensors.insert(name.clone(), stored) {
                let other = &self.shards[other.shard].file;
                bail!("{}: tensor `{name}` is in {other} and in {file}; one of them must go", self.place);
            }
        }
        self.shards.push(Shard { file: file.to_string(), bytes });
        Ok(())
    }

    /// The files and their bytes.
    pub(crate) fn shards(&self) -> &[Shard<'a>] {
        &self.shards
    }

    /// Every tensor by name.
    pub(crate) fn tensors(&self) -> &BTreeMap<String, Stored> {
        &self.tensors
    }

    /// A matrix that `check` has found; a vector is a matrix with one row.
    pub(crate) fn matrix<'b>(&'b self, name: &'b str) -> Result<DenseMatrix<'b>> {
        let stored = self.tensors.get(name).with_context(|| format!("{}: no tensor `{name}`", self.place))?;
        let dtype = float(stored.dtype).with_context(|| format!("`{name}` has dtype {}", stored.dtype))?;
        let (outputs, inputs) = match stored.shape[..] {
            [outputs, inputs] => (outputs, inputs),
            [inputs] => (1, inputs),
            _ => bail!("`{name}` has shape {:?}", stored.shape),
        };
        Ok(DenseMatrix { name, outputs, inputs, dtype, bytes: self.bytes(stored) })
    }

    /// The elements of a tensor.
    pub(crate) fn bytes(&self, stored: &Stored) -> &[u8] {
        &self.shards[stored.shard].bytes[stored.range.clone()]
    }

    /// Folder and file of a tensor, for messages.
    pub(crate) fn file(&self, stored: &Stored) -> String {
        format!("{}: {}", self.place, self.shards[stored.shard].file)
    }
}

/// The element types that weights are read from.
pub(crate) fn float(dtype: StoredDtype) -> Option<Dtype> {
    match dtype {
        StoredDtype::F32 => Some(Dtype::F32),
        StoredDtype::F16 => Some(Dtype::F16),
        StoredDtype::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

/// Where the data begins, and what is in it; the file is as long as its header says.
fn read_header(bytes: &[u8]) -> Result<(usize, Metadata)> {
    let found = bytes.len() as u64;
    let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
    let start = length.and_then(|length| length.checked_add(8)).filter(|&start| start <= found);
    let Some(start) = start else {
        bail!(
            "truncated, or not a safetensors file: the header should have {} bytes, the file has {found}",
            length.map_or("at least 8".to_string(), |length| length.to_string())
        );
    };
    let start = start as usize;
    let metadata: Metadata = serde_json::from_slice(&bytes[8..start]).context("not a safetensors header")?;
    let expected = start as u64 + metadata.data_len() as u64;
    ensure!(
        expected == found,
        "{}: the header describes a file of {expected} bytes, found {found}; copy or download it again",
        if found < expected { "truncated" } else { "bytes after the last tensor" }
    );
    Ok((start, metadata))
}

/// The `weight_map` of an index: the file of each tensor.
fn weight_map(index: &[u8]) -> Result<BTreeMap<String, String>> {
    let index: Value = serde_json::from_slice(index).context("not valid JSON")?;
    let map = index.get("weight_map").and_then(Value::as_object).context("weight_map must be an object")?;
    let entry = |(tensor, file): (&String, &Value)| {
        let name = file.as_str().filter(|file| !file.contains(['/', '\\']) && *file != "..");
        let name =
            name.with_context(|| format!("weight_map: `{tensor}` is {file}: must be the name of a file here"))?;
        Ok((tensor.clone(), name.to_string()))
    };
    map.iter().map(entry).collect()
}
