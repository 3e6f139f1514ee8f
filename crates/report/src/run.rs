//! What is known of a run before its first round.

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::{FileHash, ModelInfo, RunSpec, Speculation, WeightFormat};
use specquant_machine::{Build, Machine};
use specquant_metrics::{Peaks, Quality, RowCosts};

/// What is run, where, and on what.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Run {
    /// Version of the form of `rounds.jsonl` and of the record.
    pub schema: u32,
    /// What was built.
    pub build: Build,
    /// When it began, UTC.
    pub began: String,
    /// Where it ran.
    pub machine: Machine,
    /// What computed, such as `cpu avx2, 2 threads`.
    pub device: String,
    /// The most that this can do, measured before the first round.
    pub peaks: Peaks,
    /// The target models, then the draft models.
    pub models: Vec<ModelInfo>,
    /// The files of models and prompts.
    pub files: Vec<FileHash>,
    /// What was noticed of models and prompts before they ran, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Prompts in each pass.
    pub prompts: usize,
    /// Mean tokens of a prompt.
    pub prompt_tokens: f64,
    /// Parts into which the requests of a round are cut. All arms run a part before any runs the next.
    pub parts: usize,
    /// Nanoseconds that loading each of `models` took.
    pub load_ns: Vec<u64>,
    /// For each cell that drafts what forwards cost by their rows, measured before the first round.
    pub row_costs: Vec<Option<RowCosts>>,
    /// For each cell what its weight formats cost in quality, measured before the first round.
    pub quality: Vec<Option<Quality>>,
    /// Passes that warmed each cell up, not counted.
    pub warm_up: Vec<usize>,
    /// The cells, in the order of the arms.
    pub cells: Vec<RunSpec>,
    /// For each cell its target's place in `models`.
    pub targets: Vec<usize>,
    /// For each cell its draft model's place in `models`, if it has one.
    pub drafts: Vec<Option<usize>>,
}

/// Version of the stored form; a change that readers must know of counts it up.
pub const SCHEMA: u32 = 4;

/// Characters of two values that a message can hold.
const MOST_SHOWN: usize = 160;

impl Run {
    /// The cell that every round runs twice, so that its noise is known.
    pub fn control(&self) -> usize {
        control(&self.cells)
    }

    /// Says in what this run differs from one with the same spec that is about to be measured, so that their rounds cannot
    /// stand side by side. When they began and how long they took to warm up may differ.
    pub fn same(&self, other: &Run) -> Result<()> {
        let facts = [
            ("program", format!("{:?}", self.build), format!("{:?}", other.build)),
            ("files", format!("{:?}", self.files), format!("{:?}", other.files)),
            ("machine", format!("{:?}", self.machine), format!("{:?}", other.machine)),
            ("device", self.device.clone(), other.device.clone()),
            ("models", format!("{:?}", self.models), format!("{:?}", other.models)),
            ("cells", format!("{:?}", self.cells), format!("{:?}", other.cells)),
            (
                "prompts",
                format!("{} of {}", self.prompts, self.prompt_tokens),
                format!("{} of {}", other.prompts, other.prompt_tokens),
            ),
            ("parts", self.parts.to_string(), other.parts.to_string()),
        ];
        for (what, then, now) in facts {
            // Whole models and cells would bury the message.
            let long = then.len() + now.len() > MOST_SHOWN;
            let values = if long { String::new() } else { format!(" ({then} then, {now} now)") };
            ensure!(then == now, "it had another {what}{values}; `specquant rerun` runs its spec afresh");
        }
        Ok(())
    }

    /// Says what is wrong with a description that does not fit together, because somebody has changed it.
    pub fn validate(&self) -> Result<()> {
        let (cells, models) = (self.cells.len(), self.models.len());
        let of_cells =
            [self.targets.len(), self.drafts.len(), self.warm_up.len(), self.row_costs.len(), self.quality.len()];
        ensure!(cells > 0 && of_cells == [cells; 5], "the run's lists are not of its {cells} cells");
        for cell in &self.cells {
            cell.validate()?;
        }
        ensure!(self.load_ns.len() == models, "the run's load times are not of its {models} models");
        let named = self.targets.iter().chain(self.drafts.iter().flatten());
        for model in named {
            ensure!(*model < models, "a cell names model {model} of {models}");
        }
        Ok(())
    }

    /// Milliseconds that loading a cell's models took.
    pub fn load_ms(&self, cell: usize) -> f64 {
        let models = [Some(self.targets[cell]), self.drafts[cell]];
        models.into_iter().flatten().map(|model| self.load_ns[model] as f64 / 1e6).sum()
    }

    /// The arms that run a cell: its own, and for the control the last one too.
    pub fn arms_of(&self, cell: usize) -> Vec<usize> {
        if cell == self.control() { vec![cell, self.cells.len()] } else { vec![cell] }
    }

    /// The cell that an arm runs; the last arm repeats the control.
    pub(crate) fn cell_of(&self, arm: usize) -> &RunSpec {
        self.cells.get(arm).unwrap_or(&self.cells[self.control()])
    }

    /// The cell that this one is compared with as a whole: plain f16 decoding, else the first plain cell, of the same
    /// target on the same requests.
    pub fn control_of(&self, cell: usize) -> Option<usize> {
        let of = &self.cells[cell];
        let alike = |other: &RunSpec| {
            other.target == of.target && other.sampling == of.sampling && other.workload == of.workload
        };
        first_plain(&self.cells, alike)
    }

    /// The cell that differs from this one only in having no speculation; itself for a plain cell.
    pub fn plain_of(&self, cell: usize) -> Option<usize> {
        let plain = self.cells[cell].plain();
        self.cells.iter().position(|other| *other == plain)
    }
}

/// The cell of an experiment that is run twice in every round: its first plain f16 cell, or its first plain one.
pub fn control(cells: &[RunSpec]) -> usize {
    first_plain(cells, |_| true).unwrap_or(0)
}

fn first_plain(cells: &[RunSpec], wanted: impl Fn(&RunSpec) -> bool) -> Option<usize> {
    let plain = |cell: &RunSpec| cell.speculation == Speculation::Off && wanted(cell);
    let f16 = cells.iter().position(|cell| plain(cell) && cell.weights == WeightFormat::F16);
    f16.or_else(|| cells.iter().position(plain))
}

#[cfg(test)]
mod tests {
    use specquant_core::expand;

    use super::*;

    /// The control, then for each cell its control and its own plain cell.
    fn check(spec: &str, expected: (usize, &[(usize, usize)])) {
        let cells = expand(&spec.parse().unwrap()).unwrap();
        let run = Run { cells, ..crate::sample::run() };
        let each = (0..run.cells.len()).map(|cell| (run.control_of(cell).unwrap(), run.plain_of(cell).unwrap()));
        assert_eq!((run.control(), &each.collect::<Vec<_>>()[..]), expected, "{spec}");
    }

    #[test]
    fn plain_f16_is_the_control_where_there_is_one() {
        check("", (0, &[(0, 0)]));
        check("weights = ['f32', 'bf16']", (0, &[(0, 0), (0, 1)]));
        check("weights = ['f32', 'f16']\nspeculation = ['off', 'draft:2']", (2, &[(2, 0), (2, 0), (2, 2), (2, 2)]));
        // Another target, and other requests, have controls of their own.
        check("target = ['a', 'b']", (0, &[(0, 0), (1, 1)]));
        check(
            "kv = ['paged:4', 'contiguous']\n[workload]\nmax_new_tokens = [1, 2]",
            (0, &[(0, 0), (1, 1), (0, 2), (1, 3)]),
        );
    }
}
