//! Flags over a spec: the one place where the command line becomes spec values.
//!
//! A flag that was not given changes nothing.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use toml::{Table, Value};

use crate::args::{CellArgs, Preset, RunArgs};

/// The spec table of a run: the file or the default comparison, then `--set`, then flags.
pub(crate) fn run_table(args: &RunArgs) -> Result<Table> {
    let mut table = match (&args.spec, args.preset) {
        (Some(path), _) => read(path)?,
        (None, Some(preset)) => preset_comparison(preset),
        (None, None) => default_comparison(args),
    };
    for assignment in &args.set {
        let (key, value) = assignment
            .split_once('=')
            .with_context(|| format!("--set {assignment}: write KEY=VALUE, such as workload.num_prompts=8"))?;
        put(&mut table, key.trim(), value_of(value.trim()))?;
    }
    put_integer(&mut table, "rounds", args.rounds)?;
    put_integer(&mut table, "quality_chunks", args.quality_chunks)?;
    put_list(&mut table, "precision", args.precision.as_ref(), number)?;
    put_list(&mut table, "time_budget", args.time_budget.as_ref(), text)?;
    if let Some(limits) = &args.goodput {
        put(&mut table, "slo", text(limits))?;
    }
    put_list(&mut table, "price", args.price.as_ref(), number)?;
    put_list(&mut table, "workload.prompts", args.prompts.as_ref(), text)?;
    if args.prompts.as_ref().is_some_and(|prompts| prompts != "bundled") && !names_num_prompts(&table) {
        // The default number suits the bundled prompts; whoever brings prompts wants all of them.
        put(&mut table, "workload.num_prompts", Value::Integer(0))?;
    }
    if args.skip_invalid {
        put(&mut table, "workload.skip_invalid", Value::Boolean(true))?;
    }
    put_list(&mut table, "workload.num_prompts", args.num_prompts.as_ref(), number)?;
    put_list(&mut table, "batching", args.batch.as_ref(), |n| Value::String(format!("continuous:{n}")))?;
    put_list(&mut table, "batching", args.batching.as_ref(), text)?;
    put_cell(&mut table, &args.cell)?;
    Ok(table)
}

/// The spec table of one cell, without lists.
pub(crate) fn cell_table(args: &CellArgs) -> Result<Table> {
    let mut table = Table::new();
    put_cell(&mut table, args)?;
    Ok(table)
}

/// What `specquant run` compares where the flags do not say: plain f32, f16 with and without a draft, and int4 with and
/// without. Whoever chooses weights or speculation gets the combinations of what was chosen.
fn default_comparison(args: &RunArgs) -> Table {
    let sets = |key: &str| args.set.iter().any(|set| set.trim_start().starts_with(key));
    let lengths = Value::Array(["off", "draft:2", "draft:4"].map(text).to_vec());
    let chosen =
        args.cell.weights.is_some() || args.cell.speculation.is_some() || sets("weights") || sets("speculation");
    if chosen {
        return Table::from_iter([("speculation".to_string(), lengths)]);
    }
    let f32 = [("weights", text("f32")), ("speculation", text("off"))];
    let f16 = [("weights", text("f16")), ("speculation", lengths)];
    let both = Value::Array(["off", "draft:2"].map(text).to_vec());
    let int4 = [("weights", text("int4-a8:g32")), ("speculation", both)];
    let cell = |values: [(&str, Value); 2]| {
        Value::Table(values.map(|(key, value)| (key.to_string(), value)).into_iter().collect())
    };
    Table::from_iter([("cells".to_string(), Value::Array(vec![cell(f32), cell(f16), cell(int4)]))])
}

fn preset_comparison(preset: Preset) -> Table {
    match preset {
        Preset::Naive => Table::from_iter([
            ("weights".to_string(), Value::Array(["f32", "f16"].map(text).to_vec())),
            ("speculation".to_string(), text("off")),
            ("batching".to_string(), text("continuous:1")),
            ("kv".to_string(), text("contiguous")),
        ]),
    }
}

fn names_num_prompts(table: &Table) -> bool {
    table.get("workload").is_some_and(|workload| workload.get("num_prompts").is_some())
}

fn read(path: &Path) -> Result<Table> {
    let content = specquant_workload::text(path).context("the spec")?;
    content.parse().with_context(|| format!("{}: not a spec in TOML", path.display()))
}

fn put_cell(table: &mut Table, args: &CellArgs) -> Result<()> {
    for (key, list) in [
        ("target", &args.target),
        ("draft", &args.draft),
        ("weights", &args.weights),
        ("draft_weights", &args.draft_weights),
        ("quantizer", &args.quantizer),
        ("speculation", &args.speculation),
        ("kv", &args.kv),
        ("kv_dtype", &args.kv_dtype),
        ("device", &args.device),
    ] {
        put_list(table, key, list.as_ref(), text)?;
    }
    for (key, list) in [
        ("chunk", &args.chunk),
        ("kv_pool", &args.kv_pool),
        ("workload.max_new_tokens", &args.max_new_tokens),
        ("sampling.temperature", &args.temperature),
        ("sampling.top_k", &args.top_k),
        ("sampling.top_p", &args.top_p),
        ("sampling.min_p", &args.min_p),
    ] {
        put_list(table, key, list.as_ref(), number)?;
    }
    put_integer(table, "seed", args.seed)?;
    put_integer(table, "threads", args.threads)?;
    if args.ignore_eos {
        put(table, "workload.ignore_eos", Value::Boolean(true))?;
    }
    if args.no_special_tokens {
        put(table, "workload.special_tokens", Value::Boolean(false))?;
    }
    if !args.stop.is_empty() {
        put(table, "workload.stop", Value::Array(args.stop.iter().map(|stop| text(stop)).collect()))?;
    }
    Ok(())
}

/// A single value, or a list where commas separate several.
fn put_list(table: &mut Table, key: &str, list: Option<&String>, value: fn(&str) -> Value) -> Result<()> {
    let Some(list) = list else { return Ok(()) };
    let values: Vec<Value> = parts(list).map(|part| value(part.trim())).collect();
    put(table, key, if let [single] = &values[..] { single.clone() } else { Value::Array(values) })
}

/// The parts of a list. A comma before `wait=` belongs to the value, as in `static:32,wait=50ms`.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let all = rest?;
        let ends = |(at, _): &(usize, &str)| !all[at + 1..].trim_start().starts_with("wait=");
        let end = all.match_indices(',').find(ends).map(|(at, _)| at);
        rest = end.map(|end| &all[end + 1..]);
        Some(&all[..end.unwrap_or(all.len())])
    })
}

fn put_integer(table: &mut Table, key: &str, value: Option<i64>) -> Result<()> {
    value.map_or(Ok(()), |value| put(table, key, Value::Integer(value)))
}

/// Sets the value at a dotted key.
fn put(table: &mut Table, key: &str, value: Value) -> Result<()> {
    let cells = table.get("cells").and_then(Value::as_array);
    let own = |cell: &Value| key.split('.').try_fold(cell, |value, part| value.get(part)).is_some();
    ensure!(
        !cells.is_some_and(|cells| cells.iter().any(own)),
        "`{key}` stands in [[cells]] of the spec: change it there"
    );
    match key.split_once('.') {
        None => {
            ensure!(!key.is_empty(), "an empty key in the spec: write KEY=VALUE");
            table.insert(key.to_string(), value);
            Ok(())
        }
        Some((_, inner)) if inner.contains('.') => bail!("`{key}`: a spec has no key of more than two parts"),
        Some((outer, inner)) => match table.entry(outer).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(table) => put(table, inner, value),
            _ => bail!("`{outer}` is a single value in the spec and has no `{inner}`"),
        },
    }
}

fn text(value: &str) -> Value {
    Value::String(value.to_string())
}

/// A number as TOML reads it; anything else stays text, for the spec's reader to refuse by name.
fn number(value: &str) -> Value {
    let integer = value.parse().map(Value::Integer);
    integer.or_else(|_| value.parse().map(Value::Float)).unwrap_or_else(|_| text(value))
}

/// The right side of `--set`: TOML if it is TOML, else text, a list where it has commas.
fn value_of(written: &str) -> Value {
    let toml = format!("value = {written}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    toml.unwrap_or_else(|| match parts(written).map(text).collect::<Vec<_>>() {
        one if one.len() == 1 => text(written),
        list => Value::Array(list),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn check(flags: &str, expected: Result<&str, &str>) {
        let words = ["specquant", "run"].into_iter().chain(flags.split_whitespace());
        let crate::args::Command::Run(args) = crate::args::Args::parse_from(words).command.unwrap() else {
            panic!("{flags}")
        };
        match (run_table(&args), expected) {
            (Ok(table), Ok(expected)) => assert_eq!(table, expected.parse::<Table>().unwrap(), "{flags}"),
            (Err(error), Err(expected)) => assert!(format!("{error:#}").contains(expected), "{flags}: {error:#}"),
            (got, _) => panic!("{flags}: {got:?}"),
        }
    }

    #[test]
    fn flags_become_spec_values() {
        let lengths = "speculation = ['off', 'draft:2', 'draft:4']";
        let default = &format!(
            "[[cells]]\nweights = 'f32'\nspeculation = 'off'\n[[cells]]\nweights = 'f16'\n{lengths}\n\
             [[cells]]\nweights = 'int4-a8:g32'\nspeculation = ['off', 'draft:2']"
        );
        check("", Ok(default));
        check("--speculation draft:4", Ok("speculation = 'draft:4'"));
        check("--weights f32", Ok(&format!("weights = 'f32'\n{lengths}")));
        check("--set weights=f32", Ok(&format!("weights = 'f32'\n{lengths}")));
        check("--rounds 3 --threads 2 --seed 7", Ok(&format!("rounds = 3\nthreads = 2\nseed = 7\n{default}")));
        check("--time-budget 5m --precision 0.02", Ok(&format!("precision = 0.02\ntime_budget = '5m'\n{default}")));
        check("--goodput ttft:9,tpot:1 --price 2", Ok(&format!("slo = 'ttft:9,tpot:1'\nprice = 2\n{default}")));
        check("--weights f16,f32 --speculation off", Ok("speculation = 'off'\nweights = ['f16', 'f32']"));
        let naive = "weights = ['f32', 'f16']\nspeculation = 'off'\nbatching = 'continuous:1'\nkv = 'contiguous'";
        check("--preset naive", Ok(naive));
        check("--preset naive --quality-chunks 0", Ok(&format!("quality_chunks = 0\n{naive}")));
        check("--preset naive --weights f32", Ok(&naive.replace("['f32', 'f16']", "'f32'")));
        check("--batch 1,8", Ok(&format!("batching = ['continuous:1', 'continuous:8']\n{default}")));
        let fixed = "batching = ['static:8', 'static:8,wait=50ms', 'continuous:8']";
        check("--batching static:8,static:8,wait=50ms,continuous:8", Ok(&format!("{fixed}\n{default}")));
        check("--set batching=static:8,wait=1s", Ok(&format!("batching = 'static:8,wait=1s'\n{default}")));
        check("--kv-pool 512 --kv contiguous", Ok(&format!("kv_pool = 512\nkv = 'contiguous'\n{default}")));
        check("--temperature 0.7,1", Ok(&format!("[sampling]\ntemperature = [0.7, 1]\n{default}")));
        check("--max-new-tokens many", Ok(&format!("[workload]\nmax_new_tokens = 'many'\n{default}")));
        check("--set workload.num_prompts=8", Ok(&format!("[workload]\nnum_prompts = 8\n{default}")));
        check("--set speculation=off,draft:1", Ok("speculation = ['off', 'draft:1']"));
        check("--set speculation=off --speculation draft:1", Ok("speculation = 'draft:1'"));
        check(
            "--stop a --stop b --ignore-eos",
            Ok(&format!("[workload]\nstop = ['a', 'b']\nignore_eos = true\n{default}")),
        );
    }

    #[test]
    fn what_is_not_an_assignment_is_refused() {
        let spec = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(spec.path(), "[[cells]]\nkv = 'paged:4'\n[cells.workload]\nmax_new_tokens = 3").unwrap();
        let with = |flags: &str| format!("--spec {} {flags}", spec.path().display());
        check(&with("--kv contiguous"), Err("`kv` stands in [[cells]] of the spec"));
        check(&with("--max-new-tokens 4"), Err("`workload.max_new_tokens` stands in [[cells]] of the spec"));
        check("--set rounds", Err("write KEY=VALUE"));
        check("--set a.b.c=3", Err("more than two parts"));
        check("--set =3", Err("an empty key"));
        check("--set speculation.k=3", Err("`speculation` is a single value"));
        check("--spec /nowhere/spec.toml", Err("the spec: /nowhere/spec.toml: cannot be read"));
    }
}
