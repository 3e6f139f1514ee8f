//! The command line. Every value that is part of a spec stays text here, so that specs and flags are read by one reader.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// Measures speculative decoding and weight formats together.
#[derive(Debug, Parser)]
#[command(name = "specquant", version, about, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// What to do; `run` if nothing is said.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// The flags of `run`.
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare cells over the same prompts in interleaved rounds.
    ///
    /// Where a flag describes a cell, several values may be given, separated by commas: there is one cell for each
    /// combination, such as `--weights f32,f16 --speculation off,draft:4`. Every speculative cell is compared with the
    /// same cell without speculation, which is added where it is missing.
    Run(Box<RunArgs>),
    /// Derive the record and report of a stored run again, and print them.
    Report {
        /// The folder of a run.
        folder: PathBuf,
        /// Show a run that cannot have been measured as it is stored, with INVALID on every table; nothing is written.
        #[arg(long)]
        anyway: bool,
    },
    /// Run a stored run's spec once more, and say whether the same tokens and exact metrics came out.
    Rerun(RerunArgs),
    /// Continue one prompt, plain or with speculation.
    Generate(Box<GenerateArgs>),
    /// What each weight format costs: perplexity, divergence from f32, acceptance.
    Quality(QualityArgs),
    /// Say how far numbers from this machine can be trusted, and what to fix.
    Doctor(DoctorArgs),
    /// Look at one model.
    Model {
        #[command(subcommand)]
        command: ModelCommand,
    },
    /// Print the JSON Schema of a run's record.json.
    Schema,
    /// Print what every metric is: its place in a record, unit, whether it is exact, and how it comes about.
    Metrics,
    /// Print a script that completes specquant's flags in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Shape, sizes and dtypes, from the headers alone.
    Info(Named),
    /// The logits after a sequence of token ids.
    Logits(LogitsArgs),
    /// Write a model of a larger shape that answers as a trained one does: for its speed, without a download.
    Grow(GrowArgs),
    /// Say whether two models of one vocabulary have the same likeliest tokens along the bundled prompts.
    Compare(CompareArgs),
}

/// Comparisons that have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preset {
    /// Plain f32 beside f16, one request at a time.
    Naive,
}

/// Flags of `run`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct RunArgs {
    /// A spec file in TOML; flags change its values.
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
    /// A comparison by name, of which flags change values. naive: plain f32, one request at a time in contiguous memory, as
    /// a simple pipeline does it, beside the same in f16.
    #[arg(long, value_name = "NAME", conflicts_with = "spec")]
    pub(crate) preset: Option<Preset>,
    /// Change one value of the spec, such as workload.num_prompts=8; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Latency limits in milliseconds, such as ttft:200,tpot:50,e2e:3000; adds the goodput.
    #[arg(long, value_name = "LIMITS")]
    pub(crate) goodput: Option<String>,
    /// What the machine costs in an hour; adds the cost of tokens.
    #[arg(long, allow_negative_numbers = true, value_name = "MONEY")]
    pub(crate) price: Option<String>,
    /// Print cells, memory and time, and run nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the spec that these flags make, and run nothing.
    #[arg(long)]
    pub(crate) print_spec: bool,
    /// Take up the run in this folder, which was cut off or interrupted.
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// Where the run is stored; by default a folder in runs/ named by UTC time and machine.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Rounds, each a pass over every cell; as many as --precision asks for unless given.
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) rounds: Option<i64>,
    /// Make rounds until every ratio's 95% interval ends at most this far from its middle; 0.01, which is 1%, unless given.
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE", conflicts_with = "rounds")]
    pub(crate) precision: Option<String>,
    /// Begin no round that would end later than this after loading, such as 90s or 5m; 45s where neither this nor --rounds is given.
    #[arg(long, allow_hyphen_values = true, value_name = "TIME")]
    pub(crate) time_budget: Option<String>,
    /// JSONL file with a `prompt` on each line, or `bundled`, the default.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<String>,
    /// Skip lines of the prompts' file that hold no prompt, and prompts longer than the context, and count them, instead of
    /// refusing the file.
    #[arg(long)]
    pub(crate) skip_invalid: bool,
    /// Prompts to take, spread evenly over the file; 0 takes all. 24 of the bundled ones, or all of a file, unless given.
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) num_prompts: Option<String>,
    /// Sequences that run together, as --batching continuous:N; 1 unless given.
    #[arg(long, allow_negative_numbers = true, value_name = "N", conflicts_with = "batching")]
    pub(crate) batch: Option<String>,
    /// continuous:N admits a sequence whenever fewer than N run; static:N, or static:N,wait=50ms, runs batches of up to N one
    /// after the other. continuous:1 unless given.
    #[arg(long, value_name = "HOW")]
    pub(crate) batching: Option<String>,
    /// Chunks of the bundled text over which the quality of every weight format is measured, 4 unless given; 0 leaves it out.
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) quality_chunks: Option<i64>,
    /// Make a cell, counted from 0, slower by a share, such as 1=0.03.
    #[cfg(feature = "debug-knobs")]
    #[arg(long, value_name = "CELL=SHARE")]
    pub(crate) debug_slow: Option<String>,
    #[command(flatten)]
    pub(crate) cell: CellArgs,
}

/// Flags of `doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Worker threads; 0 takes one for each physical core.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    /// Size of the block that the memory's bandwidth is measured on; 8 times the cache and at least 256 unless given.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..1_048_576))]
    pub(crate) memory: Option<u64>,
}

/// Flags of `rerun`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RerunArgs {
    /// The folder of a run.
    pub(crate) folder: PathBuf,
    /// Where the new run is stored; by default a folder in runs/ named by UTC time and machine.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Flags that describe a cell, shared by `run` and `generate`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct CellArgs {
    /// Target model: a Hugging Face folder, or `bundled`, the default.
    #[arg(long, value_name = "DIR")]
    pub(crate) target: Option<String>,
    /// Draft model: a Hugging Face folder, or `bundled`, the default.
    #[arg(long, value_name = "DIR")]
    pub(crate) draft: Option<String>,
    /// Weight format: f32, f16, bf16, fp8:channel, fp8:128x128, int8:g32, int4:g32, int4:g64, int4:g128, mxfp4, or with
    /// activations in int8 too int8-a8:g32 and int4-a8:g32; f16 unless given.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) weights: Option<String>,
    /// Weight format of the draft; the target's unless given.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) draft_weights: Option<String>,
    /// How weights are quantized: mse, which searches the scales, or rtn, which rounds to nearest; mse unless given.
    #[arg(long, value_name = "HOW")]
    pub(crate) quantizer: Option<String>,
    /// off, or draft:K for K draft tokens a step.
    #[arg(long, value_name = "HOW")]
    pub(crate) speculation: Option<String>,
    /// KV allocator: contiguous, buddy:max, buddy:pow2, buddy:oracle, paged:BLOCK or prefix:BLOCK; paged:16 unless given.
    #[arg(long, value_name = "HOW")]
    pub(crate) kv: Option<String>,
    /// Tokens that each model's KV cache has slots for; enough for all sequences that run together unless given.
    #[arg(long, allow_negative_numbers = true, value_name = "TOKENS")]
    pub(crate) kv_pool: Option<String>,
    /// KV cache format: f32 or f16; what goes with the weights unless given.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) kv_dtype: Option<String>,
    /// Most prompt tokens of a sequence in one step; 512 unless given.
    #[arg(long, allow_negative_numbers = true, value_name = "TOKENS")]
    pub(crate) chunk: Option<String>,
    /// Tokens to generate for each prompt; 64 unless given.
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) max_new_tokens: Option<String>,
    /// Generate past end-of-text tokens.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Feed prompts as they stand, without the special tokens that the tokenizer puts around every text.
    #[arg(long)]
    pub(crate) no_special_tokens: bool,
    /// Text that ends an output; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// 0 always takes the best token.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<String>,
    /// Keep this many likeliest tokens; 0 keeps all.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_k: Option<String>,
    /// Keep the likeliest tokens up to this probability; 1 keeps all.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_p: Option<String>,
    /// Drop tokens below this share of the likeliest one's probability.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) min_p: Option<String>,
    /// Seed of sampling and of the order of cells.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,
    /// Worker threads; 0 takes one for each physical core.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) threads: Option<i64>,
    /// Where to run: auto or cpu.
    #[arg(long)]
    pub(crate) device: Option<String>,
}

/// Flags of `generate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// The text to continue.
    #[arg(long, value_name = "TEXT", required_unless_present = "prompt_file")]
    pub(crate) prompt: Option<String>,
    /// A file with the text to continue.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) prompt_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cell: CellArgs,
}

/// The model that a command is about, by itself or behind `--target`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Named {
    /// A Hugging Face folder, bundled:target or bundled:draft; bundled:target unless given.
    #[arg(conflicts_with = "target")]
    model: Option<String>,
    /// The same.
    #[arg(long, value_name = "MODEL")]
    target: Option<String>,
}

impl Named {
    /// Its folder or name.
    pub(crate) fn name(&self) -> &str {
        self.model.as_deref().or(self.target.as_deref()).unwrap_or("bundled:target")
    }
}

/// Flags of `quality`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct QualityArgs {
    #[command(flatten)]
    pub(crate) model: Named,
    /// A text file in UTF-8, or `bundled`.
    #[arg(long, default_value = "bundled", value_name = "FILE")]
    pub(crate) text: String,
    /// A draft model with the same vocabulary: adds the acceptance that each format costs it. bundled:draft for the bundled
    /// target, else none, unless given.
    #[arg(long, value_name = "DIR")]
    pub(crate) draft: Option<String>,
    /// Weight formats, separated by commas; each is compared with f32.
    #[arg(long, default_value = "f32,f16,fp8:channel,int8:g32,int4:g32", value_name = "FORMATS")]
    pub(crate) weights: String,
    /// How weights are quantized: mse, which searches the scales, or rtn, which rounds to nearest.
    #[arg(long, default_value = "mse", value_name = "HOW")]
    pub(crate) quantizer: String,
    /// Take the text as it stands, without the tokens that the tokenizer puts before every text.
    #[arg(long)]
    pub(crate) no_special_tokens: bool,
    /// Tokens in a chunk; the second half of each is scored.
    #[arg(long, default_value_t = 512, value_name = "TOKENS")]
    pub(crate) chunk: usize,
    /// Worker threads; 0 takes one for each physical core.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
}

/// Flags of `model grow`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GrowArgs {
    /// The model that grows: a Hugging Face folder, bundled:target or bundled:draft.
    #[arg(long, value_name = "MODEL")]
    pub(crate) from: String,
    /// A known shape: 110m, 350m, 1b, 3b or 13b; the vocabulary stays. The flags below change it.
    #[arg(long, value_name = "SIZE")]
    pub(crate) like: Option<String>,
    /// Width of the residual stream.
    #[arg(long, value_name = "N")]
    pub(crate) hidden: Option<usize>,
    /// Decoder layers.
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<usize>,
    /// Query heads.
    #[arg(long, value_name = "N")]
    pub(crate) heads: Option<usize>,
    /// Key-value heads.
    #[arg(long, value_name = "N")]
    pub(crate) kv_heads: Option<usize>,
    /// Elements of a head, a multiple of the old.
    #[arg(long, value_name = "N")]
    pub(crate) head_dim: Option<usize>,
    /// Width of the feed-forward layer.
    #[arg(long, value_name = "N")]
    pub(crate) intermediate: Option<usize>,
    /// Positions; more than the model was trained on serve timing only.
    #[arg(long, value_name = "N")]
    pub(crate) max_position: Option<usize>,
    /// What the filler is drawn from; the same seed gives the same bytes.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A folder that is empty or not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// Flags of `model compare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Two Hugging Face folders, or bundled:target or bundled:draft; the greedy continuations of the first are followed.
    #[arg(num_args = 0..=2, value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    /// The first of them.
    #[arg(long, value_name = "MODEL")]
    pub(crate) target: Option<String>,
    /// The second.
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft: Option<String>,
    /// Weight format of both.
    #[arg(long, default_value = "f32", value_name = "FORMAT")]
    pub(crate) weights: String,
    /// How many of the bundled prompts are run.
    #[arg(long, default_value_t = 96, value_name = "N")]
    pub(crate) num_prompts: usize,
    /// Tokens by which each is continued.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) max_new_tokens: usize,
    /// Worker threads; 0 takes one for each physical core.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
}

/// Flags of `model logits`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub(crate) model: Named,
    /// Token ids, separated by commas.
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    pub(crate) tokens: Vec<u32>,
    /// Weight format, such as f16 or int4:g32.
    #[arg(long, default_value = "f32", value_name = "FORMAT")]
    pub(crate) weights: String,
    /// How weights are quantized: mse, which searches the scales, or rtn, which rounds to nearest.
    #[arg(long, default_value = "mse", value_name = "HOW")]
    pub(crate) quantizer: String,
    /// How many of the best tokens to print; JSON always holds all logits.
    #[arg(long, default_value_t = 10)]
    pub(crate) top: usize,
    /// Worker threads; 0 takes one for each physical core.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
}
