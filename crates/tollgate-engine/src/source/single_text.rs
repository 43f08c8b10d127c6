//! Writes the files of a policy as one text.

use std::fmt::Write as _;
use std::path::Path;

use super::loader::{self, LoadedFiles};
use super::{LoadError, Sources, check_loaded, policy_files_in};
use crate::document::{Node, Value};
use crate::escape::escaped;
use crate::native::yaml_text::{flow_yaml, quoted};
use crate::policy::Policy;

/// Fields that are lists. The items of all files are joined, and an item may stand without a list.
const LIST_FIELDS: [&str; 4] = ["limits", "exempt", "block", "facts"];
/// Fields that are maps. The entries of all files are joined.
const MAP_FIELDS: [&str; 2] = ["tiers", "tenants"];

impl Policy {
    /// The policy at a path as one text. A file without includes is returned as written. Several native files become
    /// one equivalent YAML file. Files in envoyproxy/ratelimit's form are concatenated as YAML documents, because
    /// each document has one domain.
    ///
    /// # Errors
    /// The files have errors. All of them are returned.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    ///
    /// # let folder = std::env::temp_dir().join(format!("tollgate-text-of-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// std::fs::write(folder.join("a.yaml"), "limits: [{name: login, key: ip, rate: 5/m}]\n")?;
    /// std::fs::write(folder.join("b.toml"), "near_limit = '90%'\n")?;
    /// let text = Policy::read_as_single_text(&folder)?;
    /// assert!(text.contains("- {\"name\": \"login\", \"key\": \"ip\", \"rate\": \"5/m\"}\n"));
    /// assert!(text.ends_with("b.toml\nnear_limit: \"90%\"\n"));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_as_single_text(path: impl AsRef<Path>) -> Result<String, LoadError> {
        let path = path.as_ref();
        // A policy with errors is reported as by `from_path`.
        let checked = Self::from_path(path)?;
        let mut sources = checked.sources.iter();
        if let (Some(only), None) = (sources.next(), sources.next()) {
            return Ok(only.text().to_owned());
        }
        if !checked.policy.domains.is_empty() {
            return Ok(concatenate_files(&checked.sources));
        }
        let load = || match policy_files_in(path) {
            files if files.is_empty() => loader::load_path(path),
            files => loader::load_paths(&files),
        };
        // The files may have changed since the check.
        let LoadedFiles { sources, trees, .. } = load();
        let text = merge_files(&trees, &sources);
        check_loaded(loader::load_text(&text, crate::document::Format::Yaml))?;
        Ok(text)
    }
}

/// Joins the files, each below a comment with its name.
fn concatenate_files(sources: &Sources) -> String {
    let mut text = String::new();
    for source in sources.iter() {
        let (name, own) = (escaped(source.name()), source.text().trim_end());
        // Writing to a string can't fail.
        let _ = write!(text, "---\n# {name}\n{own}\n");
    }
    text
}

/// One field of a policy, as found in all files.
struct MergedField<'t> {
    name: &'t str,
    values: Vec<&'t Node>,
}

/// Merges all files into one, included files first, in the order of reading.
fn merge_files(trees: &[Node], sources: &Sources) -> String {
    let mut fields: Vec<MergedField<'_>> = Vec::new();
    for tree in trees {
        for (name, value) in tree.as_fields() {
            let Some(name) = name.as_text().filter(|name| *name != "include") else {
                continue;
            };
            match fields.iter_mut().find(|field| field.name == name) {
                Some(field) => field.values.push(value),
                None => fields.push(MergedField {
                    name,
                    values: vec![value],
                }),
            }
        }
    }
    let mut text = String::new();
    for field in &fields {
        field.write_field(sources, &mut text);
    }
    text
}

impl MergedField<'_> {
    fn write_field(&self, sources: &Sources, text: &mut String) {
        let name = self.name;
        if LIST_FIELDS.contains(&name) {
            *text += &format!("{name}:\n");
            let before = text.len();
            let values = self.values.iter();
            for value in values.filter(|value| value.value != Value::Null) {
                write_file_comment(value.as_items().first(), sources, text);
                for item in value.as_items() {
                    *text += &format!("- {}\n", flow_yaml(&item.value, quoted));
                }
            }
            if text.len() == before {
                text.truncate(before - 1);
                text.push_str(" []\n");
            }
        } else if MAP_FIELDS.contains(&name) {
            *text += &format!("{name}:\n");
            for value in &self.values {
                let entries = value.as_fields();
                write_file_comment(entries.first().map(|(key, _)| key), sources, text);
                for (key, value) in entries {
                    let (key, value) = (
                        flow_yaml(&key.value, quoted),
                        flow_yaml(&value.value, quoted),
                    );
                    *text += &format!("  {key}: {value}\n");
                }
            }
        } else if let Some(value) = self.values.first() {
            write_file_comment(Some(value), sources, text);
            *text += &format!("{name}: {}\n", flow_yaml(&value.value, quoted));
        }
    }
}

/// Writes a comment with the file that the next lines are from.
fn write_file_comment(first: Option<&Node>, sources: &Sources, text: &mut String) {
    let source = first.and_then(|node| sources.get(node.span.file));
    if let Some(source) = source {
        // Writing to a string can't fail.
        let _ = writeln!(text, "# {}", escaped(source.name()));
    }
}

#[cfg(test)]
mod tests {
    use crate::diff::PolicyDiff;
    use crate::document::Format;
    use crate::policy::Policy;

    #[test]
    fn several_files_say_the_same_as_the_one_that_is_made_of_them() {
        let folder = std::env::temp_dir().join(format!("tollgate-joined-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write(
            "first.yaml",
            "include: [second.yaml, third.toml]\nlimits:\n- {name: all, rate: [5/s, 90/h]}\n\
             block: [{user: \"a\\\"\\\\\\t\\u2028b: #\"}]\ndefault_tier: free\nfacts: [region]\nmode: shadow\n",
        );
        write(
            "second.yaml",
            "limits: [{name: login, key: [ip, region], match: {path: [/a/**, /b]}, rate: 5/m, cost: 2}]\n\
             tiers: {free: {rate: 10/s burst 20}}\ntenants: {\"007\": free, \"true\": free}\nexempt: [{ip: 10.0.0.0/8}]\n",
        );
        write(
            "third.toml",
            "near_limit = '90%'\n[tiers.pro]\nquota = '10000/month'\n[tenants]\nacme = 'pro'\n",
        );
        let path = folder.join("first.yaml");
        let text = Policy::read_as_single_text(&path).unwrap();
        let (one, several) = (
            Policy::from_text(&text, Format::Yaml).unwrap().policy,
            Policy::from_path(&path).unwrap().policy,
        );
        let names = |policy: &Policy| -> Vec<String> {
            policy.rules.iter().map(|rule| rule.name.clone()).collect()
        };
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(PolicyDiff::new(&several, &one).to_string(), "", "{text}");
        assert_eq!(names(&one), ["login", "all"]);
        assert_eq!((one.tenants.len(), one.near_limit_percent), (3, 90));
    }
}
