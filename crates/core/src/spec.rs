//! A run as a value: everything that decides what is measured, and nothing that only decides where results go.
//!
//! A spec file is one `RunSpec` in TOML in which any value may be a list; `expand` gives one `RunSpec` for each
//! combination, ordered so that models are loaded as rarely as can be.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::axis::{Batching, Kv, KvDtype, Speculation, WeightFormat};
use crate::dist::Sampling;

/// One cell of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSpec {
    /// Target model: a Hugging Face folder, or `bundled`.
    pub target: String,
    /// Draft model: a Hugging Face folder, or `bundled`. Loaded only where speculation needs it.
    pub draft: String,
    /// Weight format of the target.
    pub weights: WeightFormat,
    /// Weight format of the draft; the target's unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_weights: Option<WeightFormat>,
    /// KV allocator.
    pub kv: Kv,
    /// KV cache format of target and draft; what goes with the weights unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<KvDtype>,
    /// Which requests run together.
    pub batching: Batching,
    /// Most prompt tokens that one step takes in for a sequence.
    pub chunk: usize,
    /// Where draft tokens come from.
    pub speculation: Speculation,
    /// Where the models run: `auto` or `cpu`.
    pub device: String,
    /// Worker threads; 0 takes one for each physical core.
    pub threads: usize,
    /// Seed of sampling and of the order of arms.
    pub seed: u64,
    /// Passes over every cell.
    pub rounds: usize,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// What is asked of the models.
    pub workload: Workload,
}

/// The requests of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// A JSONL file with a `prompt` on each line, or `bundled`.
    pub prompts: String,
    /// How many prompts to take, spread evenly over the file; 0 takes all.
    pub num_prompts: usize,
    /// Tokens to generate for each prompt.
    pub max_new_tokens: usize,
    /// Whether to generate past an end-of-text token.
    pub ignore_eos: bool,
    /// Texts that end an output.
    pub stop: Vec<String>,
}

impl Default for RunSpec {
    fn default() -> Self {
        RunSpec {
            target: "bundled".into(),
            draft: "bundled".into(),
            weights: WeightFormat::F16,
            draft_weights: None,
            kv: Kv::Paged { block: 16 },
            kv_dtype: None,
            batching: Batching::Continuous { limit: 1 },
            chunk: 512,
            speculation: Speculation::Off,
            device: "auto".into(),
            threads: 0,
            seed: 0,
            // A multiple of the three cells of the default comparison, so that every order occurs equally often.
            rounds: 6,
            sampling: Sampling::GREEDY,
            workload: Workload::default(),
        }
    }
}

impl Default for Workload {
    fn default() -> Self {
        Workload { prompts: "bundled".into(), num_prompts: 24, max_new_tokens: 64, ignore_eos: false, stop: Vec::new() }
    }
}

impl RunSpec {
    /// Weight format of the draft model.
    pub fn draft_weights(&self) -> WeightFormat {
        self.draft_weights.unwrap_or(self.weights)
    }

    /// The same cell without speculation: the control that a speculative cell is compared with. It has no draft model,
    /// so cells with different ones share it.
    pub fn plain(&self) -> RunSpec {
        let RunSpec { draft, draft_weights, .. } = RunSpec::default();
        RunSpec { speculation: Speculation::Off, draft, draft_weights, ..self.clone() }
    }

    /// Says which value is out of its range.
    pub fn validate(&self) -> Result<()> {
        self.sampling.validate()?;
        ensure!(self.chunk >= 1, "chunk 0: a step must take in at least one prompt token");
        ensure!((1..=1000).contains(&self.rounds), "rounds {}: must lie in 1..=1000", self.rounds);
        ensure!(self.threads <= 1024, "threads {}: must lie in 0..=1024; 0 takes every physical core", self.threads);
        ensure!(self.workload.max_new_tokens >= 1, "max_new_tokens 0: at least one token must be generated");
        match self.device.as_str() {
            "auto" | "cpu" => Ok(()),
            other => bail!("unknown device `{other}`: use auto or cpu"),
        }
    }
}

/// No experiment has more cells; a longer product is a slip of the pen.
const MOST_CELLS: usize = 1000;

/// Values that are the same in every cell of an experiment, so a list makes no sense for them.
const SHARED: [&str; 4] = ["device", "threads", "seed", "rounds"];

/// Every combination of the listed values in `table`, which otherwise reads as a `RunSpec`; validated.
pub fn expand(table: &Table) -> Result<Vec<RunSpec>> {
    let mut tables = vec![table.clone()];
    let table_lists_drafts = ["draft", "draft_weights"].iter().any(|key| table.get(*key).is_some_and(Value::is_array));
    for path in axes(table)? {
        let values = at(table, &path).map_or(0, Vec::len);
        ensure!(
            tables.len() * values <= MOST_CELLS,
            "the lists of the spec make more than {MOST_CELLS} cells: shorten them"
        );
        tables = tables.iter().map(|cell| split(cell, &path)).collect::<Result<Vec<_>>>()?.concat();
    }
    let mut cells = Vec::new();
    for table in tables {
        let cell: RunSpec = Value::Table(table).try_into()?;
        cell.validate()?;
        let plain = cell.speculation == Speculation::Off;
        let cell = if plain { cell.plain() } else { cell };
        // A list of draft models gives the same plain cell for each.
        if plain && cells.contains(&cell) && table_lists_drafts {
            continue;
        }
        ensure!(!cells.contains(&cell), "the same cell stands twice in the spec: a value is listed twice");
        cells.push(cell);
    }
    cells.sort_by(|a, b| load_key(a).cmp(&load_key(b)));
    Ok(cells)
}

/// Cells that are equal here share loaded models.
fn load_key(cell: &RunSpec) -> impl Ord + '_ {
    (&cell.target, cell.weights, cell.kv_dtype, &cell.draft, cell.draft_weights())
}

/// Key paths of the lists in `table`; `workload.stop` is a list by nature and no axis.
fn axes(table: &Table) -> Result<Vec<Vec<&str>>> {
    let mut paths = Vec::new();
    for (key, value) in table {
        match value {
            Value::Array(_) if SHARED.contains(&key.as_str()) => {
                bail!("`{key}` is shared by all cells of a run and cannot be a list")
            }
            Value::Array(_) => paths.push(vec![key.as_str()]),
            Value::Table(inner) => {
                let lists = inner.iter().filter(|(name, value)| value.is_array() && name.as_str() != "stop");
                paths.extend(lists.map(|(name, _)| vec![key.as_str(), name.as_str()]));
            }
            _ => {}
        }
    }
    Ok(paths)
}

/// The list at `path`.
fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Vec<Value>> {
    let (last, outer) = path.split_last()?;
    let table = outer.iter().try_fold(table, |table, key| table.get(*key)?.as_table())?;
    table.get(*last)?.as_array()
}

/// One copy of `cell` for each value of the list at `path`.
fn split(cell: &Table, path: &[&str]) -> Result<Vec<Table>> {
    let values = at(cell, path).with_context(|| format!("{path:?} is not a list"))?;
    ensure!(!values.is_empty(), "`{}` is an empty list: give at least one value", path.join("."));
    Ok(values.iter().map(|value| with(cell.clone(), path, value)).collect())
}

fn with(mut table: Table, path: &[&str], value: &Value) -> Table {
    match path {
        [key] => {
            table.insert((*key).to_string(), value.clone());
        }
        [key, rest @ ..] => {
            if let Some(inner) = table.get_mut(*key).and_then(Value::as_table_mut) {
                *inner = with(std::mem::take(inner), rest, value);
            }
        }
        [] => {}
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(toml: &str, expected: Result<&[&str], &str>) {
        let cells = toml.parse::<Table>().map_err(anyhow::Error::from).and_then(|table| expand(&table));
        let got = cells.map(|cells| {
            let line = |cell: &RunSpec| {
                format!("{} {} {} {}", cell.weights, cell.speculation, cell.kv, cell.workload.max_new_tokens)
            };
            cells.iter().map(line).collect::<Vec<_>>()
        });
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{toml}"),
            (Err(got), Err(expected)) => assert!(format!("{got:#}").contains(expected), "{toml}: {got:#}"),
            (got, expected) => panic!("{toml}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn lists_expand_to_their_product_in_loading_order() {
        check("", Ok(&["f16 off paged:16 64"]));
        check("speculation = ['off', 'draft:2']", Ok(&["f16 off paged:16 64", "f16 draft:2 paged:16 64"]));
        check(
            "speculation = ['draft:2', 'off']\nweights = ['f16', 'f32']\n[workload]\nmax_new_tokens = 8",
            Ok(&["f32 draft:2 paged:16 8", "f32 off paged:16 8", "f16 draft:2 paged:16 8", "f16 off paged:16 8"]),
        );
        // Plain cells have no draft, so two draft formats share one.
        check(
            "speculation = ['off', 'draft:2']\ndraft_weights = ['f16', 'f32']",
            Ok(&["f16 draft:2 paged:16 64", "f16 off paged:16 64", "f16 draft:2 paged:16 64"]),
        );
        check(
            "kv = ['contiguous']\n[workload]\nmax_new_tokens = [1, 2]\nstop = ['a', 'b']",
            Ok(&["f16 off contiguous 1", "f16 off contiguous 2"]),
        );
    }

    #[test]
    fn a_spec_that_cannot_be_run_says_which_value_and_why() {
        check("weigths = 'f16'", Err("unknown field `weigths`"));
        check("weights = 'q4'", Err("unknown weight format `q4`"));
        check("weights = []", Err("`weights` is an empty list"));
        check("weights = ['f16', 'f16']", Err("listed twice"));
        let long = format!("chunk = {:?}\n[workload]\nmax_new_tokens = {0:?}", Vec::from_iter(1..50));
        check(&long, Err("more than 1000 cells"));
        check("seed = [1, 2]", Err("`seed` is shared by all cells"));
        check("rounds = 0", Err("rounds 0"));
        check("chunk = 0", Err("chunk 0"));
        check("device = 'tpu'", Err("unknown device `tpu`"));
        check("[sampling]\ntemperature = -1.0", Err("temperature -1"));
        check("[workload]\nmax_new_tokens = 0", Err("max_new_tokens 0"));
        check("[workload]\nmax_new_tokens = 'many'", Err("invalid type: string \"many\""));
    }

    #[test]
    fn a_spec_survives_the_round_trip_through_toml() {
        let speculation = Speculation::Draft { k: 3 };
        let spec = RunSpec { draft_weights: Some(WeightFormat::F32), chunk: 7, speculation, ..RunSpec::default() };
        let text = toml::to_string(&spec).unwrap();
        assert_eq!(expand(&text.parse().unwrap()).unwrap(), [spec]);
    }
}
