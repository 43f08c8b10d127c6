//! The manifests: they match Kubernetes' schemas, agree with one another and with the service, and a pod's command
//! passes its probes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tollgate_testkit::external_programs::kubernetes_validate;
use tollgate_testkit::redis::{Server, wait_until};
use tollgate_testkit::temp_folder::TempFolder;

use super::{contrib, drain_seconds, get, run, seconds, setting, settings, text};
use crate::kit::{LONG, Service, tollgate};

const FILES: [&str; 3] = [
    "kubernetes/common.yaml",
    "kubernetes/deployment.yaml",
    "kubernetes/statefulset.yaml",
];

/// The oldest and the newest Kubernetes whose schemas are at hand, of those that still are in use.
const VERSIONS: [&str; 2] = ["1.28", "1.37"];

/// Whether a file matches the schemas, and the messages.
fn is_valid(file: &PathBuf, version: &str) -> (bool, String) {
    let mut command = Command::new(kubernetes_validate());
    command.args(["--strict", "--kubernetes-version", version]);
    run(command.arg(file))
}

/// The objects of a file, by the reader of YAML that comes with the validator.
fn objects(name: &str) -> Vec<Value> {
    let python = kubernetes_validate().with_file_name("python");
    let mut command = Command::new(python);
    let program =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let (is_content, said) = run(command.args(["-c", program]).arg(contrib(name)));
    assert!(is_content, "{name}: {said}");
    serde_json::from_str(&said).expect("JSON")
}

fn of_kind(kind: &str) -> Vec<Value> {
    let all = FILES.iter().flat_map(|name| objects(name));
    all.filter(|object| object["kind"] == kind).collect()
}

/// What a manifest runs: the pods' specification, and the one container.
struct Pods {
    name: String,
    labels: Value,
    spec: Value,
}

impl Pods {
    fn all() -> Vec<Self> {
        let owners = [of_kind("Deployment"), of_kind("StatefulSet")].concat();
        let all: Vec<_> = owners
            .into_iter()
            .map(|owner| {
                let template = &owner["spec"]["template"];
                assert_eq!(
                    owner["spec"]["selector"]["matchLabels"],
                    template["metadata"]["labels"]
                );
                Self {
                    name: owner["kind"].as_str().expect("a kind").to_owned(),
                    labels: template["metadata"]["labels"].clone(),
                    spec: template["spec"].clone(),
                }
            })
            .collect();
        assert_eq!(all.len(), 2);
        all
    }

    fn container(&self) -> &Value {
        assert_eq!(self.spec["containers"].as_array().map(Vec::len), Some(1));
        &self.spec["containers"][0]
    }

    fn arguments(&self) -> Vec<String> {
        serde_json::from_value(self.container()["args"].clone()).expect("a list of text")
    }

    /// The environment; what is from a secret is the URL of a store.
    fn environment(&self, store: &str) -> Vec<(String, String)> {
        let all = self.container()["env"].as_array();
        let all = all.map_or(&[][..], Vec::as_slice).iter().map(|one| {
            let name = one["name"].as_str().expect("a name");
            let value = one["value"].as_str().unwrap_or_else(|| {
                assert_eq!(one["valueFrom"]["secretKeyRef"]["key"], "url");
                store
            });
            (name.to_owned(), value.to_owned())
        });
        all.collect()
    }

    fn settings(&self) -> Vec<(String, String)> {
        settings(
            &self.arguments(),
            &self.environment("redis://:secret@redis:6379"),
        )
    }

    /// The port of this name.
    #[track_caller]
    fn port(&self, name: &Value) -> u64 {
        let ports = self.container()["ports"].as_array().expect("ports");
        let port = ports.iter().find(|port| port["name"] == *name);
        let port = port.unwrap_or_else(|| panic!("{}: no port {name}", self.name));
        port["containerPort"].as_u64().expect("a number")
    }

    /// Each probe's path and the name of its port.
    fn probes(&self) -> Vec<(String, Value)> {
        let kinds = ["readinessProbe", "livenessProbe", "startupProbe"];
        let probes = kinds.iter().map(|kind| &self.container()[*kind]["httpGet"]);
        probes
            .map(|get| {
                (
                    get["path"].as_str().expect("a path").to_owned(),
                    get["port"].clone(),
                )
            })
            .collect()
    }
}

#[test]
fn the_schemas_of_kubernetes_take_every_manifest() {
    for (name, version) in FILES
        .iter()
        .flat_map(|name| VERSIONS.map(|version| (name, version)))
    {
        let (is_content, said) = is_valid(&contrib(name), version);
        assert!(is_content, "{name} for {version}: {said}");
    }
}

#[test]
fn the_schemas_of_kubernetes_refuse_a_misspelt_field() {
    let scratch = TempFolder::new("misspelt");
    let path = scratch.path("deployment.yaml");
    let misspelt = text(FILES[1]).replace("readOnlyRootFilesystem", "readonlyRootFilesystem");
    fs::write(&path, misspelt).expect("a file");
    let (is_content, said) = is_valid(&path, VERSIONS[1]);
    assert!(
        !is_content && said.contains("readonlyRootFilesystem"),
        "{said}"
    );
}

#[test]
fn the_service_takes_the_arguments_and_listens_where_ports_say() {
    for pods in Pods::all() {
        let settings = pods.settings();
        for port in pods.container()["ports"].as_array().expect("ports") {
            let name = port["name"].as_str().expect("a name");
            let listens = format!("0.0.0.0:{}", pods.port(&port["name"]));
            assert_eq!(setting(&settings, name), listens, "{}", pods.name);
        }
        // What operators can do isn't for the network.
        assert!(setting(&settings, "admin").starts_with("127.0.0.1:"));
        for (_, port) in pods.probes() {
            pods.port(&port);
        }
        let is_in_memory = setting(&settings, "backend") == "memory";
        let has_state = settings.iter().any(|(name, _)| name == "state");
        let is_alone = pods.name == "StatefulSet";
        assert_eq!((is_in_memory, has_state), (is_alone, is_alone));
    }
}

#[test]
fn pods_are_given_longer_to_end_than_the_service_takes() {
    for pods in Pods::all() {
        let grace = pods.spec["terminationGracePeriodSeconds"].as_u64();
        let drain = drain_seconds(&pods.settings());
        assert!(grace.expect("a number") > drain, "{}: {drain}", pods.name);
        // Probes fail, and those who send requests hear of it, before nobody is taken any more.
        let readiness = &pods.container()["readinessProbe"];
        let noticed = readiness["periodSeconds"]
            .as_u64()
            .zip(readiness["failureThreshold"].as_u64());
        let (period, failures) = noticed.expect("numbers");
        let delay = seconds(setting(&pods.settings(), "drain-delay"));
        assert!(delay > period * failures, "{}: {delay}", pods.name);
    }
}

#[test]
fn pods_are_restricted_and_have_no_token() {
    for pods in Pods::all() {
        let (name, spec, container) = (&pods.name, &pods.spec, pods.container());
        assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
        assert_eq!(spec["enableServiceLinks"], false, "{name}");
        let pod = &spec["securityContext"];
        assert_eq!(pod["runAsNonRoot"], true, "{name}");
        assert_eq!(pod["runAsUser"], 65532, "{name}: as in the Dockerfile");
        assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        let own = &container["securityContext"];
        assert_eq!(own["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(own["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(
            own["capabilities"]["drop"],
            serde_json::json!(["ALL"]),
            "{name}"
        );
        for resource in ["cpu", "memory"] {
            assert!(
                container["resources"]["requests"][resource].is_string(),
                "{name}"
            );
        }
        assert!(
            container["resources"]["limits"]["memory"].is_string(),
            "{name}"
        );
    }
}

#[test]
fn services_budgets_and_policies_of_the_network_are_about_these_pods() {
    let pods = Pods::all();
    let mut ports = Vec::new();
    for service in of_kind("Service") {
        assert!(
            pods.iter()
                .all(|pods| pods.labels == service["spec"]["selector"])
        );
        for port in service["spec"]["ports"].as_array().expect("ports") {
            ports.push(port["targetPort"].clone());
        }
    }
    for budget in of_kind("PodDisruptionBudget") {
        assert!(
            pods.iter()
                .all(|pods| pods.labels == budget["spec"]["selector"]["matchLabels"])
        );
    }
    for policy in of_kind("NetworkPolicy") {
        let spec = &policy["spec"];
        assert!(
            pods.iter()
                .all(|pods| pods.labels == spec["podSelector"]["matchLabels"])
        );
        let rules = spec["ingress"]
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter();
        let of_rules = rules.flat_map(|rule| rule["ports"].as_array().expect("ports"));
        ports.extend(of_rules.map(|port| port["port"].clone()));
    }
    for (pods, port) in pods
        .iter()
        .flat_map(|pods| ports.iter().map(move |port| (pods, port)))
    {
        pods.port(port);
    }
    let headless = of_kind("StatefulSet").remove(0)["spec"]["serviceName"].clone();
    let services = of_kind("Service");
    let found = services
        .iter()
        .find(|service| service["metadata"]["name"] == headless);
    assert_eq!(found.expect("its service")["spec"]["clusterIP"], "None");
}

#[test]
fn the_policy_of_the_manifests_has_no_errors_and_no_warnings() {
    let scratch = TempFolder::new("manifest-policy");
    let path = scratch.path("policy.yaml");
    fs::write(&path, policy()).expect("a file");
    let (is_content, said) = run(tollgate().args(["check", "--strict"]).arg(&path));
    assert!(is_content, "{said}");
}

fn policy() -> String {
    let map = of_kind("ConfigMap").remove(0);
    map["data"]["policy.yaml"]
        .as_str()
        .expect("text")
        .to_owned()
}

/// A folder as kubelet mounts a ConfigMap: names are links into a folder that is replaced as a whole.
struct Mounted {
    scratch: TempFolder,
    version: u32,
}

impl Mounted {
    fn new(policy: &str) -> Self {
        let mut mounted = Self {
            scratch: TempFolder::new("mounted"),
            version: 0,
        };
        mounted.write(policy);
        symlink("..data/policy.yaml", mounted.scratch.path("policy.yaml")).expect("a link");
        mounted
    }

    fn write(&mut self, policy: &str) {
        self.version += 1;
        let name = format!("..2026_{}", self.version);
        let folder = self.scratch.path(&name);
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("policy.yaml"), policy).expect("a file");
        let (new, data) = (self.scratch.path("..data_tmp"), self.scratch.path("..data"));
        symlink(&name, &new).expect("a link");
        fs::rename(new, data).expect("the swap");
    }
}

/// Runs what the pods run, with ports that are free and folders of this machine.
fn start(pods: &Pods, mounted: &Mounted, state: &TempFolder, store: &str) -> Service {
    let path = |scratch: &TempFolder| scratch.folder().to_str().expect("text").to_owned();
    let (policies, state) = (path(&mounted.scratch), path(state));
    let here = |text: &str| {
        text.replace("/etc/tollgate", &policies)
            .replace("/var/lib/tollgate", &state)
    };
    let arguments: Vec<_> = pods.arguments()[1..]
        .iter()
        .map(|argument| match argument.split_once("=0.0.0.0:") {
            Some((flag, _)) => format!("{flag}=127.0.0.1:0"),
            // Whoever tells this one to end can tell when it does.
            None if argument.starts_with("--drain-delay=") => "--drain-delay=0s".to_owned(),
            None => here(argument),
        })
        .collect();
    let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--admin", "0"]);
    Service::with(&arguments, |command| {
        let environment = pods.environment(store).into_iter();
        command.envs(environment.map(|(name, value)| (name, here(&value))));
    })
}

#[test]
fn what_a_pod_runs_answers_its_probes_and_follows_its_config_map() {
    let store = Server::start();
    for pods in Pods::all() {
        let (mut mounted, state) = (Mounted::new(&policy()), TempFolder::new("pod-state"));
        let service = start(&pods, &mounted, &state, &store.url());
        for (path, port) in pods.probes() {
            let address = service.ready[port.as_str().expect("a name")].as_str();
            let answer = get(address.expect("an address"), &path);
            assert!(
                answer.starts_with("HTTP/1.1 200 "),
                "{}: {path}: {answer}",
                pods.name
            );
        }
        let rule = || service.post("/v1/check", r#"{"facts": {"user": "ada"}}"#).1;
        assert!(rule().contains(r#""rule":"per-user""#), "{}", rule());
        mounted.write("limits: [{name: swapped, key: user, rate: 5/s}]");
        wait_until(LONG, "the policy to be swapped", || {
            rule().contains(r#""rule":"swapped""#)
        });
        assert_eq!(service.end("TERM").code(), Some(0), "{}", pods.name);
    }
}
