//! What an outage of the store means for whom, in one line.

use tollgate_engine::policy::{Counting, OnStoreFailure};

use super::LimitReport;

/// Limits beyond these are counted: a line is read.
const MOST: usize = 8;

/// What becomes of the requests of each limit while the store can't be asked; none if no limit asks one.
pub(super) fn told(limits: &[LimitReport]) -> Option<String> {
    let asks = |limit: &&LimitReport| {
        limit.counting != Counting::Local
            && !limit.is_unlimited
            && limit.mode != "off"
            && !limit.failures.is_empty()
    };
    let asking: Vec<&LimitReport> = limits.iter().filter(asks).collect();
    // Those that deny come first: they are what an outage costs.
    let (denying, others): (Vec<_>, Vec<_>) = asking.into_iter().partition(|limit| {
        let mut modes = limit.failures.iter();
        modes.any(|(_, mode)| *mode == OnStoreFailure::Closed)
    });
    let all: Vec<_> = denying.into_iter().chain(others).collect();
    let mut words: Vec<String> = all.iter().take(MOST).map(|limit| one(limit)).collect();
    if let Some(more) = all.len().checked_sub(MOST).filter(|more| *more > 0) {
        words.push(format!("and {more} more"));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

fn one(limit: &LimitReport) -> String {
    let name = match limit.kind {
        "tier" => format!("tier {}", limit.name),
        _ => limit.name.clone(),
    };
    let denies = match limit.mode {
        "shadow" => "would deny",
        _ => "denies",
    };
    let verb = |mode: OnStoreFailure| match mode {
        OnStoreFailure::Open => "lets all pass",
        OnStoreFailure::Closed => denies,
        OnStoreFailure::Local | OnStoreFailure::CircuitBreak => "counts in each process",
    };
    let (closed, rest): (Vec<_>, Vec<_>) = limit
        .failures
        .iter()
        .partition(|(_, mode)| *mode == OnStoreFailure::Closed);
    let kinds = |list: &[&(&'static str, OnStoreFailure)]| {
        let kinds: Vec<_> = list.iter().map(|(kind, _)| *kind).collect();
        kinds.join(" and ")
    };
    let same = |list: &[&(&'static str, OnStoreFailure)]| {
        let first = list.first().map(|(_, mode)| verb(*mode));
        first.filter(|first| list.iter().all(|(_, mode)| verb(*mode) == *first))
    };
    match (closed.as_slice(), rest.as_slice()) {
        ([], rest) => match same(rest) {
            Some(verb) => format!("{name} {verb}"),
            None => {
                let each: Vec<_> = rest
                    .iter()
                    .map(|(kind, mode)| format!("its {kind} {}", verb(*mode)))
                    .collect();
                format!("{name}: {}", each.join(", "))
            }
        },
        (_, []) => format!("{name} {denies}"),
        (closed, _) => format!("{name} {denies}, by its {}", kinds(closed)),
    }
}
