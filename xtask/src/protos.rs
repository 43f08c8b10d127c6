//! `cargo xtask protos`: the descriptors of the service's reflection, compiled from its `.proto` files.

use std::fs;
use std::path::{Path, PathBuf};

use protox::Compiler;

/// The root files, which import the others.
const ROOTS: [&str; 4] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
    "grpc/reflection/v1alpha/reflection.proto",
];

/// The action with the compiled descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OutputAction {
    /// Write them to the file that the service includes.
    Write,
    /// Report whether they equal that file.
    Compare,
}

/// Compiles all files into one set of descriptors.
pub(crate) fn run(then: OutputAction) -> Result<(), String> {
    let server = server();
    let set = compile(&server.join("proto"))?;
    let path = server.join("src/rls/descriptors.bin");
    let failed = |error| format!("{}: {error}", path.display());
    match then {
        OutputAction::Write => fs::write(&path, set).map_err(failed),
        OutputAction::Compare if fs::read(&path).map_err(failed)? == set => Ok(()),
        OutputAction::Compare => Err(format!(
            "{} isn't what the .proto files say: run cargo xtask protos",
            path.display()
        )),
    }
}

fn server() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/tollgate-server")
}

fn compile(protos: &Path) -> Result<Vec<u8>, String> {
    let compiled = Compiler::new([protos]).and_then(|mut compiler| {
        compiler
            .include_imports(true)
            .include_source_info(false)
            .open_files(ROOTS)?;
        Ok(compiler.encode_file_descriptor_set())
    });
    compiled.map_err(|error| error.to_string())
}
