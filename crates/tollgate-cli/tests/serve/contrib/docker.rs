//! The Dockerfile: two stages, of which the last has one program and no root user.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_testkit::external_programs::find_program;
use tollgate_testkit::temp_folder::TempFolder;

use super::{lines, run, settings, text};
use crate::kit::{ANY, Service};

/// What Alpine's own target is, of this machine.
const STATIC: &str = "x86_64-unknown-linux-musl";

/// The instructions of each stage, whose first is `FROM`.
fn stages(text: &str) -> Vec<Vec<(&str, &str)>> {
    let mut stages: Vec<Vec<_>> = Vec::new();
    for line in lines(text) {
        let (instruction, rest) = line
            .split_once(' ')
            .expect("an instruction and its arguments");
        if instruction == "FROM" {
            stages.push(Vec::new());
        }
        let stage = stages.last_mut().expect("FROM comes first");
        stage.push((instruction, rest));
    }
    stages
}

/// The arguments of an instruction that a stage has once.
fn only<'t>(stage: &[(&str, &'t str)], instruction: &str) -> &'t str {
    let mut found = stage.iter().filter(|(own, _)| *own == instruction);
    let (Some((_, rest)), None) = (found.next(), found.next()) else {
        panic!("one {instruction}");
    };
    rest
}

/// The words of an instruction that no shell reads.
fn words(list: &str) -> Vec<String> {
    serde_json::from_str(list)
        .unwrap_or_else(|error| panic!("{list}: {error}: a shell would be needed"))
}

/// A field of the workspace's manifest, as `rust-version = "1.89"`.
fn of_manifest(field: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let text = fs::read_to_string(path).expect("a manifest");
    let value = lines(&text).find_map(|line| line.strip_prefix(field)?.trim().strip_prefix('='));
    value
        .expect("the field")
        .trim()
        .trim_matches('"')
        .to_owned()
}

#[test]
fn the_image_has_one_program_no_shell_and_nobody_who_is_root() {
    let text = text("Dockerfile");
    let stages = stages(&text);
    let [build, image] = &stages[..] else {
        panic!("two stages");
    };
    assert_eq!(image[0], ("FROM", "scratch"));
    assert_eq!(only(image, "USER"), "65532:65532");
    assert!(
        image.iter().all(|(own, _)| *own != "RUN"),
        "there is nothing to run by"
    );
    let copied: Vec<_> = image.iter().filter(|(own, _)| *own == "COPY").collect();
    let program = words(only(image, "ENTRYPOINT")).remove(0);
    assert!(
        copied.iter().any(|(_, rest)| rest.ends_with(&program)),
        "{program}"
    );
    let (_, name) = build[0].1.split_once(" AS ").expect("a name");
    for (_, rest) in copied {
        assert!(rest.starts_with(&format!("--from={name} ")), "{rest}");
    }
}

#[test]
fn the_image_starts_a_service_that_others_can_reach() {
    let text = text("Dockerfile");
    let stages = stages(&text);
    let image = stages.last().expect("a stage");
    let environment: Vec<_> = only(image, "ENV")
        .split(' ')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let settings = settings(&words(only(image, "CMD")), &environment);
    // A variable that there isn't would not be noticed by the service.
    for (name, value) in &environment {
        let name = name.strip_prefix("TOLLGATE_").expect("ours").to_lowercase();
        assert!(
            settings.contains(&(name.replace('_', "-"), value.clone())),
            "{name}"
        );
    }
    let ports: Vec<_> = environment
        .iter()
        .filter_map(|(_, value)| Some(value.rsplit_once(':')?.1))
        .collect();
    assert_eq!(only(image, "EXPOSE").split(' ').collect::<Vec<_>>(), ports);
}

#[test]
fn the_image_is_built_from_what_the_workspace_has() {
    let text = text("Dockerfile");
    let stages = stages(&text);
    let (version, _) = stages[0][0]
        .1
        .strip_prefix("rust:")
        .and_then(|tag| tag.split_once('-'))
        .expect("a tag of rust");
    let number = |version: &str| -> u32 {
        version
            .split('.')
            .nth(1)
            .expect("1.x")
            .parse()
            .expect("a number")
    };
    assert!(
        number(version) >= number(&of_manifest("rust-version")),
        "{version}"
    );
    // Whatever is a member, or is linked to from one, has to be sent to the builder.
    let ignore = super::text("Dockerfile.dockerignore");
    let sent: Vec<_> = lines(&ignore)
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let members = of_manifest("members");
    for member in members.trim_matches(['[', ']']).split(',') {
        let member = member.trim().trim_matches('"');
        let folder = member.split('/').next().expect("a folder");
        assert!(
            sent.contains(&folder),
            "{folder} is ignored: contrib/Dockerfile.dockerignore"
        );
    }
    for linked in ["docs", "README.md", "LICENSE-*", "Cargo.lock"] {
        assert!(sent.contains(&linked), "{linked}");
    }
}

/// Where the program is that the Dockerfile's command builds, for a target that is static as Alpine's own is.
fn built() -> PathBuf {
    let text = text("Dockerfile");
    let stages = stages(&text);
    let build = stages[0]
        .iter()
        .find_map(|(_, rest)| rest.strip_prefix("cargo "));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    find_program("musl-gcc", "apt-get install musl-tools");
    let folder = root.join("target/static");
    let mut command = Command::new(env!("CARGO"));
    command
        .args(build.expect("how it is built").split(' '))
        .args(["--target", STATIC]);
    command.arg("--target-dir").arg(&folder).current_dir(&root);
    let (is_content, said) = run(&mut command);
    assert!(
        is_content,
        "{said}\nis the target missing? rustup target add {STATIC}"
    );
    folder.join(STATIC).join("release/tollgate")
}

#[test]
fn the_program_is_static_and_serves_in_an_empty_folder() {
    if std::env::var_os("TOLLGATE_SOAK").is_none() {
        return;
    }
    let program = built();
    let (_, said) = run(Command::new("ldd").arg(&program));
    assert!(
        said.contains("statically linked") || said.contains("not a dynamic"),
        "{said}"
    );
    // All that the image has, and a policy.
    let root = TempFolder::new("image");
    let inside = root.path("usr/local/bin/tollgate");
    fs::create_dir_all(inside.parent().expect("a folder")).expect("a folder");
    fs::copy(&program, &inside).expect("a copy");
    let policy = "limits: [{name: daily, key: user, quota: 2/day in Europe/Berlin}]";
    fs::write(root.path("policy.yaml"), policy).expect("a file");
    let service = Service::with(&ANY, |command| {
        let ready = command
            .get_args()
            .last()
            .expect("the file of addresses")
            .to_owned();
        let mut here = Command::new(find_program("chroot", "apt-get install coreutils"));
        here.args(["--userspec=65532:65532"]).arg(root.folder());
        here.args(["/usr/local/bin/tollgate", "serve", "/policy.yaml"])
            .args(ANY);
        here.arg("--ready-file").arg("/ready/json").env_clear();
        // The file is seen by both.
        let shared = root.path("ready");
        fs::create_dir(&shared).expect("a folder");
        chown(&shared, Some(65532), Some(65532)).expect("the owner: this test needs root");
        symlink(shared.join("json"), &ready).expect("a link");
        *command = here;
    });
    let ask = || service.post("/v1/check", r#"{"facts": {"user": "ada"}}"#).0;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    assert_eq!(service.end("TERM").code(), Some(0));
}
