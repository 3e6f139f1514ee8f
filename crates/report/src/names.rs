//! How cells are told apart in print: by the axes in which they differ, and by nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use specquant_core::{RunSpec, Speculation};

/// Axes whose values say by themselves what they are, such as `paged:16`.
const PLAIN: [&str; 5] = ["weights", "kv", "kv_dtype", "batching", "speculation"];

/// The axes in which the cells of a run differ.
pub(crate) struct Names {
    varying: BTreeSet<String>,
    /// Those of them whose values are folders of one name, so that only their paths tell them apart.
    alike: BTreeSet<String>,
}

impl Names {
    pub(crate) fn of(cells: &[RunSpec]) -> Names {
        let mut found: BTreeMap<String, BTreeSet<Option<String>>> = BTreeMap::new();
        let flat: Vec<(bool, BTreeMap<String, String>)> =
            cells.iter().map(|cell| (cell.speculation != Speculation::Off, values(cell))).collect();
        let keys: BTreeSet<&String> = flat.iter().flat_map(|(_, values)| values.keys()).collect();
        for key in keys {
            // A plain cell has no draft model, so it does not differ in it from the others.
            let asked = flat.iter().filter(|(drafts, _)| *drafts || !key.starts_with("draft"));
            found.insert(key.clone(), asked.map(|(_, values)| values.get(key).cloned()).collect());
        }
        found.retain(|_, values| values.len() > 1);
        let names = |values: &BTreeSet<Option<String>>| {
            values.iter().flatten().map(|value| folder(value).to_string()).collect::<BTreeSet<_>>()
        };
        let alike =
            found.iter().filter(|(_, values)| names(values).len() < values.len()).map(|(key, _)| key.clone()).collect();
        Names { varying: found.into_keys().collect(), alike }
    }

    /// Whether cells differ in this axis or, for `sampling`, in one of its values.
    pub(crate) fn vary(&self, axis: &str) -> bool {
        let inner = format!("{axis}.");
        self.varying.iter().any(|key| key == axis || key.starts_with(&inner))
    }

    /// What sets a cell apart beside its target, weights and speculation, which have columns of their own.
    pub(crate) fn further(&self, cell: &RunSpec) -> String {
        let own = ["target", "weights", "speculation"];
        self.describe(cell, |key| !own.contains(&key))
    }

    /// A control's name: weights always, the rest where it sets the cell apart.
    pub(crate) fn control(&self, cell: &RunSpec) -> String {
        let rest = self.describe(cell, |key| key != "weights" && key != "speculation");
        if rest.is_empty() { cell.weights.to_string() } else { format!("{}, {rest}", cell.weights) }
    }

    /// What sets a speculative cell's draft model apart.
    pub(crate) fn draft(&self, cell: &RunSpec) -> String {
        self.describe(cell, |key| key.starts_with("draft"))
    }

    fn describe(&self, cell: &RunSpec, wanted: impl Fn(&str) -> bool) -> String {
        // A plain cell has no draft, whatever the others have.
        let drafts = cell.speculation != Speculation::Off;
        let values = values(cell);
        let named = self.varying.iter().filter(|key| wanted(key) && (drafts || !key.starts_with("draft")));
        let parts = named.filter_map(|key| {
            let value = values.get(key)?;
            if ["draft", "target"].contains(&key.as_str()) {
                return Some(format!("{key} {}", if self.alike.contains(key) { value } else { folder(value) }));
            }
            if key == "draft_weights" {
                return Some(format!("draft in {value}"));
            }
            let name = key.rsplit('.').next().unwrap_or(key);
            Some(if PLAIN.contains(&name) { value.clone() } else { format!("{name} {value}") })
        });
        parts.collect::<Vec<_>>().join(" ")
    }
}

/// The last part of a path, which is what a model is called.
fn folder(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// A cell as text by dotted key, written as in a record.
fn values(cell: &RunSpec) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    // Through text, because only there an f32 such as 0.7 keeps its short form.
    let value = serde_json::to_string(cell).and_then(|text| serde_json::from_str(&text)).unwrap_or(Value::Null);
    flatten("", &value, &mut flat);
    flat
}

fn flatten(prefix: &str, value: &Value, flat: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, flat);
            }
        }
        Value::String(text) => drop(flat.insert(prefix.into(), text.clone())),
        other => drop(flat.insert(prefix.into(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use specquant_core::expand;

    /// The further name and the control's name of each cell of a spec.
    fn check(spec: &str, expected: &[(&str, &str)]) {
        let cells = expand(&spec.parse().unwrap()).unwrap();
        let names = Names::of(&cells);
        let got: Vec<_> = cells.iter().map(|cell| (names.further(cell), names.control(cell))).collect();
        let expected: Vec<_> = expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        assert_eq!(got, expected, "{spec}");
    }

    #[test]
    fn cells_are_named_by_what_sets_them_apart() {
        check("", &[("", "f16")]);
        check("weights = ['f32', 'f16']", &[("", "f32"), ("", "f16")]);
        check("kv = ['paged:4', 'contiguous']", &[("paged:4", "f16, paged:4"), ("contiguous", "f16, contiguous")]);
        check(
            "[sampling]\ntemperature = [0.7, 1]",
            &[("temperature 0.7", "f16, temperature 0.7"), ("temperature 1.0", "f16, temperature 1.0")],
        );
        check(
            "speculation = ['off', 'draft:2']\ndraft_weights = ['f32', 'f16']",
            &[("draft in f32", "f16, draft in f32"), ("", "f16"), ("draft in f16", "f16, draft in f16")],
        );
        check(
            "speculation = ['draft:2']\ndraft = ['/models/small/', 'bundled']",
            &[("draft small", "f16, draft small"), ("draft bundled", "f16, draft bundled")],
        );
        check(
            "speculation = ['draft:2']\ndraft = ['/a/small', '/b/small']",
            &[("draft /a/small", "f16, draft /a/small"), ("draft /b/small", "f16, draft /b/small")],
        );
        // The only draft sets no cell apart.
        check("speculation = ['off', 'draft:2']\ndraft = '/models/small'", &[("", "f16"), ("", "f16")]);
        check("target = ['a', 'b']", &[("", "f16, target a"), ("", "f16, target b")]);
    }
}
