//! The form of a record, as a JSON Schema. The published copy is `schema/record.schema.json`.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::record::Record;
use crate::run::SCHEMA;

/// The JSON Schema (draft 2020-12) of `record.json`.
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<Record>().to_value();
    schema["title"] = json!(format!("specquant record, version {SCHEMA}"));
    schema["$defs"]["Run"]["properties"]["schema"]["const"] = json!(SCHEMA);
    schema["properties"]["schema"]["const"] = json!(SCHEMA);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::log;

    #[test]
    fn the_published_schema_is_that_of_this_version() {
        let published: Value = serde_json::from_str(include_str!("../../../schema/record.schema.json")).unwrap();
        let message =
            "a record's form has changed: count SCHEMA up, then `specquant schema > schema/record.schema.json`";
        assert!(published == schema(), "{message}");
    }

    #[test]
    fn a_record_is_valid_and_a_damaged_one_is_not() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        for rounds in [1, 3] {
            let record = Record::derive(&log(rounds, 15)).unwrap();
            let mut value = serde_json::to_value(&record).unwrap();
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{errors:?}");
            value["schema"] = json!(SCHEMA + 1);
            assert!(!validator.is_valid(&value));
            let mut value = serde_json::to_value(&record).unwrap();
            value["arms"][0]["summary"]["counts"]["requests"] = json!("many");
            assert!(!validator.is_valid(&value));
            let mut value = serde_json::to_value(&record).unwrap();
            value.as_object_mut().unwrap().remove("trust");
            assert!(!validator.is_valid(&value));
        }
    }
}
