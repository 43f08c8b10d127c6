//! `tollgate diff`: its output and its exit codes.

use serde_json::{Value, json};

use crate::{folder, run, run_with};

const OLD: &str = "limits:\n- {name: api, key: user, rate: 10/s}\n- {name: gone, rate: 5/s}\n";
const NEW: &str = "limits:\n# Twice as much.\n- {name: api, key: user, rate: 20/s}\n";

#[test]
fn it_ends_as_diff_does() {
    let files = [
        ("old.yaml", OLD),
        ("new.yaml", NEW),
        (
            "same.yaml",
            "# Nothing else.\nlimits:\n- {rate: 10/s, name: api, key: [user]}\n- {name: gone, rate: 5/s}\n",
        ),
        ("broken.yaml", "limits: [{name: api, rate: 10/fortnight}]\n"),
    ];
    let folder = folder("diff", &files);
    let told = "~ rule \"api\": keeps what its keys have spent\n    rate: 10/s -> 20/s\n\
                - rule \"gone\": limits nobody, and what its keys have spent counts if it returns\n    rate: 5/s\n";
    let ended = run(&folder, &["diff", "old.yaml", "new.yaml"]);
    assert_eq!(ended, (Some(1), told.to_owned(), String::new()));
    let ended = run(&folder, &["diff", "old.yaml", "same.yaml"]);
    assert_eq!(ended, (Some(0), String::new(), String::new()));
    for pair in [["broken.yaml", "old.yaml"], ["old.yaml", "broken.yaml"]] {
        let (code, out, err) = run(&folder, &["diff", pair[0], pair[1]]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains("broken.yaml:1:31"), "{err}");
    }
    let (code, _, err) = run(&folder, &["diff", "old.yaml", "none.yaml"]);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = run(&folder, &["diff", "-", "-"]);
    assert_eq!(code, Some(2));
    assert_eq!(
        err,
        "error: standard input is one policy: give the other as a file\n"
    );
    let (code, _, _) = run(&folder, &["diff", "old.yaml"]);
    assert_eq!(code, Some(2));
}

#[test]
fn one_of_both_may_come_from_standard_input_and_programs_read_json() {
    let folder = folder("diff-json", &[("new.yaml", NEW)]);
    let new = folder.join("new.yaml");
    let (code, out, err) = run_with(OLD, &["diff", "--json", "-", new.to_str().expect("text")]);
    assert_eq!(code, Some(1), "{err}");
    let found: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        found["changes"][0],
        json!({
            "kind": "rule", "name": "api", "what": "changed", "state": "kept", "in_store": null,
            "fields": [{"name": "rate", "old": "10/s", "new": "20/s"}],
        })
    );
    assert_eq!(found["changes"][1]["state"], "retired");
}
