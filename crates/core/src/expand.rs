//! From a spec file to cells: any value of a `RunSpec` in TOML may be a list, and there is one cell for each combination.
//!
//! Cells come in an order in which models are loaded as rarely as can be.

use anyhow::{Context, Result, bail, ensure};
use toml::{Table, Value};

use crate::axis::Speculation;
use crate::spec::RunSpec;

/// No experiment has more cells; a longer product is a slip of the pen.
const MOST_CELLS: usize = 1000;

/// Values that are the same in every cell of an experiment, so a list makes no sense for them.
const SHARED: [&str; 9] =
    ["device", "threads", "seed", "rounds", "precision", "time_budget", "slo", "price", "quality_chunks"];

/// The cells of a spec: every combination of the listed values in `table`, which otherwise reads as a `RunSpec`. Where it
/// holds `cells`, a list of tables, each of them adds to or replaces the rest and is expanded by itself. Validated.
pub fn expand(table: &Table) -> Result<Vec<RunSpec>> {
    let mut cells = Vec::new();
    for table in parts(table)? {
        expand_part(&table, &mut cells)?;
    }
    cells.sort_by(|a, b| load_key(a).cmp(&load_key(b)));
    Ok(cells)
}

/// The tables that are expanded one by one.
fn parts(table: &Table) -> Result<Vec<Table>> {
    let mut base = table.clone();
    let Some(cells) = base.remove("cells") else { return Ok(vec![base]) };
    let mistake = "`cells` must be a list of tables: write [[cells]] above the values of each";
    let list = cells.as_array().context(mistake)?;
    ensure!(!list.is_empty(), "`cells` is an empty list: give at least one cell");
    let mut parts = Vec::new();
    for cell in list {
        let mut part = base.clone();
        for (key, value) in cell.as_table().context(mistake)? {
            ensure!(
                !SHARED.contains(&key.as_str()),
                "`{key}` is shared by all cells of a run: write it above [[cells]]"
            );
            match (part.get_mut(key), value) {
                (Some(Value::Table(known)), Value::Table(inner)) => known.extend(inner.clone()),
                _ => drop(part.insert(key.clone(), value.clone())),
            }
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Adds every combination of the listed values in `table` to `cells`.
fn expand_part(table: &Table, cells: &mut Vec<RunSpec>) -> Result<()> {
    let mut tables = vec![table.clone()];
    let table_lists_drafts = ["draft", "draft_weights"].iter().any(|key| table.get(*key).is_some_and(Value::is_array));
    for path in axes(table)? {
        let values = at(table, &path).map_or(0, Vec::len);
        ensure!(
            cells.len() + tables.len() * values <= MOST_CELLS,
            "the lists of the spec make more than {MOST_CELLS} cells: shorten them"
        );
        tables = tables.iter().map(|cell| split(cell, &path)).collect::<Result<Vec<_>>>()?.concat();
    }
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
    Ok(())
}

/// Cells that are equal here share loaded models.
fn load_key(cell: &RunSpec) -> impl Ord + '_ {
    (&cell.target, cell.weights, cell.quantizer, cell.kv_dtype, &cell.draft, cell.draft_weights())
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
    use crate::axis::WeightFormat;

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
    fn tables_of_cells_are_expanded_one_by_one() {
        check(
            "kv = 'contiguous'\n[[cells]]\nweights = 'f32'\n[[cells]]\nspeculation = ['off', 'draft:2']",
            Ok(&["f32 off contiguous 64", "f16 off contiguous 64", "f16 draft:2 contiguous 64"]),
        );
        check(
            "[workload]\nmax_new_tokens = 8\n[[cells]]\n[cells.workload]\nignore_eos = true\n[[cells]]\nkv = 'paged:4'",
            Ok(&["f16 off paged:16 8", "f16 off paged:4 8"]),
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
        check("precision = 0", Err("precision 0"));
        check("price = 0", Err("price 0"));
        check("slo = 'ttft:0'", Err("latency limit `ttft:0`"));
        check("time_budget = '5 parsecs'", Err("such as \"45s\" or \"3m\""));
        check("time_budget = 45", Err("45: write a time with its unit"));
        check("cells = 3", Err("write [[cells]]"));
        check("cells = []", Err("`cells` is an empty list"));
        check("[[cells]]\nseed = 3", Err("`seed` is shared by all cells"));
        check("[[cells]]\nweights = 'f16'\n[[cells]]", Err("listed twice"));
        check("chunk = 0", Err("chunk 0"));
        check("device = 'tpu'", Err("unknown device `tpu`"));
        check("[sampling]\ntemperature = -1.0", Err("temperature -1"));
        check("[workload]\nmax_new_tokens = 0", Err("max_new_tokens 0"));
        check("[workload]\nmax_new_tokens = 'many'", Err("invalid type: string \"many\""));
    }

    #[test]
    fn a_spec_survives_the_round_trip_through_toml() {
        let speculation = Speculation::Draft { k: 3 };
        let spec = RunSpec {
            draft_weights: Some(WeightFormat::F32),
            chunk: 7,
            speculation,
            rounds: Some(9),
            ..RunSpec::default()
        };
        let text = toml::to_string(&spec).unwrap();
        assert_eq!(expand(&text.parse().unwrap()).unwrap(), [spec]);
    }
}
