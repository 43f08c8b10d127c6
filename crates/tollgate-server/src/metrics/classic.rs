//! The text as Prometheus read it before OpenMetrics: counters are named in full there, and there is no end.

/// What is written in OpenMetrics, in the older form.
pub(super) fn to_classic(open: &str) -> String {
    let mut classic = String::with_capacity(open.len());
    // Of the metric that begins, until its type is known.
    let mut help = "";
    for line in open.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
            continue;
        }
        let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        else {
            classic.push_str(line);
            classic.push('\n');
            continue;
        };
        let (suffix, kind) = match kind {
            "counter" => ("_total", kind),
            "info" => ("_info", "gauge"),
            _ => ("", kind),
        };
        let help = help.strip_prefix(name).unwrap_or_default();
        classic.push_str(&format!("# HELP {name}{suffix}{help}\n"));
        classic.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_infos_are_named_in_full_and_the_rest_stays() {
        let open = "# HELP a How many.\n# TYPE a counter\na_total{b=\"# EOF\"} 1\n# HELP c What.\n# TYPE c info\n\
                    c_info 1\n# HELP d_seconds Time.\n# TYPE d_seconds gauge\n# UNIT d_seconds seconds\n\
                    d_seconds 2\n# EOF\n";
        let classic = "# HELP a_total How many.\n# TYPE a_total counter\na_total{b=\"# EOF\"} 1\n\
                       # HELP c_info What.\n# TYPE c_info gauge\nc_info 1\n# HELP d_seconds Time.\n\
                       # TYPE d_seconds gauge\nd_seconds 2\n";
        assert_eq!(to_classic(open), classic);
    }
}
