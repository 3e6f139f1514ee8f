//! The files of one model: a Hugging Face folder, or the same files in memory.
//!
//! Nothing is kept open: a file is mapped when it is read and released when its `Content` is dropped.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use specquant_core::FileHash;
use specquant_kernels::Mapped;

use super::checkpoint::Checkpoint;
use super::weights::instead;
use crate::config::Config;
use crate::json;
use crate::tokenizer::Tokenizer;

/// Where a model's files are.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    name: String,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// Files are replaced, never rewritten, while they are read: see `Mapped`.
    Folder(PathBuf),
    Memory(BTreeMap<String, Cow<'static, [u8]>>),
}

/// A file or folder among a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) folder: bool,
}

/// How a pointer of git-lfs begins, which lies where a file was not downloaded.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The largest JSON file of a model that is read; tokenizers of large vocabularies have tens of MiB.
const MOST_JSON: u64 = 256 << 20;

/// The bytes of one file.
pub(crate) enum Content<'a> {
    Mapped(Mapped),
    Memory(&'a [u8]),
}

impl Deref for Content<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Content::Mapped(file) => file,
            Content::Memory(bytes) => bytes,
        }
    }
}

impl ModelFiles {
    /// A folder as Hugging Face lays it out: `config.json`, `tokenizer.json`, `model.safetensors` (or
    /// `model.safetensors.index.json` and the files that it names) and optionally `generation_config.json`. The root of a model
    /// in the hub's cache, `models--ORGANIZATION--NAME`, stands for the snapshot that its `refs/main` names.
    ///
    /// # Errors
    /// When there is no such folder, or no `config.json` in it.
    pub fn folder(path: &Path) -> Result<ModelFiles> {
        if !path.is_dir() {
            bail!("{}: not a folder; give the folder of a Hugging Face checkpoint, or `bundled`", path.display());
        }
        let snapshot = snapshot(path)?;
        let folder = snapshot.as_deref().unwrap_or(path);
        let files = ModelFiles { name: name(path)?, source: Source::Folder(folder.to_path_buf()) };
        if files.read_if_there("config.json")?.is_none() {
            match instead(&files.entries()?) {
                Some(why) => bail!("{}: {why}", folder.display()),
                None => bail!("{}: no config.json in this folder; is it the folder of a checkpoint?", folder.display()),
            }
        }
        Ok(files)
    }

    /// Files held in memory, by the names that they have in a folder.
    pub fn memory(name: &str, files: BTreeMap<String, Cow<'static, [u8]>>) -> ModelFiles {
        ModelFiles { name: name.to_string(), source: Source::Memory(files) }
    }

    /// The folder's name, or `bundled target`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shape of the model.
    ///
    /// # Errors
    /// As [`Config::parse`], with the folder.
    pub fn config(&self) -> Result<Config> {
        let config = self.read("config.json")?;
        let generation = self.read_if_there("generation_config.json")?;
        let mut config = Config::parse(&config, generation.as_deref()).with_context(|| self.place())?;
        if config.eos_token_ids.is_empty() {
            let named = self.named_eos().with_context(|| self.place())?;
            config.eos_token_ids.extend(named.filter(|id| (*id as usize) < config.vocab_size));
        }
        Ok(config)
    }

    /// What a reader of numbers made with this model, and with its tokenizer if it has one, should know of how its files were
    /// read, in sentences.
    ///
    /// # Errors
    /// As [`crate::load()`], except for what only the weights themselves can show.
    pub fn notes(&self, tokenizer: Option<&Tokenizer>) -> Result<Vec<String>> {
        self.notes_on(&Checkpoint::open(self)?, &self.config()?, tokenizer)
    }

    /// The notes on a checkpoint that is open already.
    pub(crate) fn notes_on(
        &self,
        checkpoint: &Checkpoint<'_>,
        config: &Config,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Vec<String>> {
        let mut notes = Config::notes(&self.read("config.json")?).with_context(|| self.place())?;
        notes.extend(checkpoint.renamed());
        notes.extend(super::check::other_head(checkpoint, config));
        for file in ["quantize_config.json", "quant_config.json"] {
            if self.read_if_there(file)?.is_some() {
                notes.push(format!(
                    "{file} speaks of quantized weights, and the weights here are plain: it is not followed"
                ));
            }
        }
        let adds = tokenizer.map(|tokenizer| !specquant_core::Text::template(tokenizer).before.is_empty());
        let says = self.token_settings()?.and_then(|settings| settings.get("add_bos_token")?.as_bool());
        if let (Some(adds), Some(says)) = (adds, says)
            && adds != says
        {
            let found = if adds { "puts a token before every text" } else { "puts none before a text" };
            notes.push(format!(
                "tokenizer_config.json says add_bos_token {says}, tokenizer.json {found}: the latter decides"
            ));
        }
        Ok(notes)
    }

    /// The contents of `tokenizer_config.json`, if there is one.
    fn token_settings(&self) -> Result<Option<Value>> {
        let settings = self.read_if_there("tokenizer_config.json")?;
        let settings = settings.map(|settings| json::parse(&settings)).transpose();
        settings.with_context(|| format!("{}: tokenizer_config.json: not valid JSON", self.place()))
    }

    /// The id of the token that `tokenizer_config.json` says ends a text.
    fn named_eos(&self) -> Result<Option<u32>> {
        // A token is named by its text, or by an object that holds it.
        let settings = self.token_settings()?.unwrap_or_default();
        let token = settings.get("eos_token").map(|token| token.get("content").unwrap_or(token));
        match (token.and_then(Value::as_str), self.read_if_there("tokenizer.json")?) {
            (Some(token), Some(tokenizer)) => Ok(Tokenizer::parse(&self.name, &tokenizer)?.id(token)),
            _ => Ok(None),
        }
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// When `tokenizer.json` is missing or cannot be read, or knows ids that the model has no embedding for.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let tokenizer = Tokenizer::parse(&self.name, &self.read("tokenizer.json")?).with_context(|| self.place())?;
        let (ids, vocab) = (specquant_core::Text::vocab(&tokenizer), self.config()?.vocab_size);
        if ids > vocab {
            bail!(
                "{}: tokenizer.json has ids up to {}, config.json has vocab_size {vocab}: the files are of two models",
                self.place(),
                ids - 1
            );
        }
        Ok(tokenizer)
    }

    /// The hashes of all files that the model is made of.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn hashes(&self) -> Result<Vec<FileHash>> {
        let hash = |file: &str, content: &[u8]| FileHash::of(format!("{}/{file}", self.name), content);
        let mut hashes = Vec::new();
        for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
            hashes.extend(self.read_if_there(file)?.map(|content| hash(file, &content)));
        }
        let checkpoint = Checkpoint::open(self)?;
        hashes.extend(checkpoint.shards().iter().map(|shard| hash(&shard.file, &shard.bytes)));
        Ok(hashes)
    }

    /// Where the files are, for messages.
    pub(crate) fn place(&self) -> String {
        match &self.source {
            Source::Folder(path) => path.display().to_string(),
            Source::Memory(_) => self.name.clone(),
        }
    }

    /// All files and folders, by name. Of a link the bytes are those of the file that it leads to.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>> {
        let folder = match &self.source {
            Source::Folder(folder) => folder,
            Source::Memory(files) => {
                let entry = |(name, bytes): (&String, &Cow<'_, [u8]>)| Entry {
                    name: name.clone(),
                    bytes: bytes.len() as u64,
                    folder: false,
                };
                return Ok(files.iter().map(entry).collect());
            }
        };
        let entry = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let about = std::fs::metadata(&path).ok();
            let folder = about.as_ref().is_some_and(std::fs::Metadata::is_dir);
            Ok(Entry { name, bytes: about.filter(|_| !folder).map_or(0, |about| about.len()), folder })
        };
        let mut entries = std::fs::read_dir(folder)
            .and_then(|all| all.map(entry).collect::<std::io::Result<Vec<Entry>>>())
            .with_context(|| self.place())?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The bytes of a file that must be there.
    pub(crate) fn read(&self, file: &str) -> Result<Content<'_>> {
        self.read_if_there(file)?.with_context(|| format!("{}: {file} is missing", self.place()))
    }

    /// The bytes of a file, or `None` where there is no such file.
    ///
    /// # Errors
    /// What cannot be read, is no file, leads nowhere, or is a pointer of git-lfs to a file that was not downloaded.
    pub(crate) fn read_if_there(&self, file: &str) -> Result<Option<Content<'_>>> {
        let content = match &self.source {
            Source::Memory(files) => files.get(file).map(|bytes| Content::Memory(bytes)),
            Source::Folder(folder) => map(&folder.join(file))?,
        };
        if let Some(pointer) = content.as_ref().filter(|content| content.starts_with(LFS_POINTER)) {
            let text = String::from_utf8_lossy(&pointer[..pointer.len().min(1024)]);
            let size = text.lines().find_map(|line| line.strip_prefix("size ")).unwrap_or("unknown").to_string();
            bail!(
                "{}: {file} is a git-lfs pointer to a file of {size} bytes that was not downloaded: run `git lfs pull` there",
                self.place()
            );
        }
        Ok(content)
    }
}

/// Maps a file, if there is one.
fn map(path: &Path) -> Result<Option<Content<'static>>> {
    let shown = path.display();
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match std::fs::read_link(path) {
                Ok(target) => bail!("{shown}: a link to {}, which is not there", target.display()),
                Err(_) => Ok(None),
            };
        }
        about => about.with_context(|| shown.to_string())?,
    };
    if !about.is_file() {
        bail!("{shown}: {} where a file belongs", if about.is_dir() { "a folder" } else { "a device or pipe" });
    }
    if path.extension().is_some_and(|ending| ending == "json") && about.len() > MOST_JSON {
        bail!("{shown}: {} bytes, of which at most {MOST_JSON} are read", about.len());
    }
    let mapped = File::open(path).and_then(|file| Mapped::new(&file)).with_context(|| shown.to_string())?;
    Ok(Some(Content::Mapped(mapped)))
}

/// The snapshot that the root of a model in the hub's cache stands for; `None` for any other folder.
fn snapshot(path: &Path) -> Result<Option<PathBuf>> {
    let (snapshots, main) = (path.join("snapshots"), path.join("refs/main"));
    if path.join("config.json").exists() || !snapshots.is_dir() {
        return Ok(None);
    }
    let revision = std::fs::read_to_string(&main).with_context(|| {
        format!("{}: which snapshot is meant? give one of the folders in {}", main.display(), snapshots.display())
    })?;
    let snapshot = snapshots.join(revision.trim());
    if !snapshot.is_dir() {
        bail!("{} names the snapshot {}, which is not there: download it again", main.display(), snapshot.display());
    }
    Ok(Some(snapshot))
}

/// What a folder is called.
fn name(path: &Path) -> Result<String> {
    let whole = path.canonicalize().with_context(|| format!("{}", path.display()))?;
    let name = whole.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
    Ok(name.into_owned())
}
