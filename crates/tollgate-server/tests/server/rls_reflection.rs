//! Reflection: clients that know only the address of the service.

use std::process::Command;
use std::time::Duration;

use prost_reflect::prost::Message;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Value, json};

use crate::kit::Running;
use crate::rls_client::{Failed, Grpc, Talk, framed};

const TREE: &str =
    "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";

const VERSIONS: [&str; 2] = ["v1", "v1alpha"];

/// A conversation of one version.
struct Asking<'r> {
    talk: Talk<'r>,
    question: MessageDescriptor,
    answer: MessageDescriptor,
}

impl<'r> Asking<'r> {
    fn new(client: &mut Grpc<'r>, version: &str) -> Self {
        let pool = DescriptorPool::decode(&include_bytes!("../../src/rls/descriptors.bin")[..]);
        let pool = pool.expect("descriptors");
        let package = format!("grpc.reflection.{version}");
        let message = |name| {
            let found = pool.get_message_by_name(&format!("{package}.{name}"));
            found.unwrap_or_else(|| panic!("no {name} in {package}"))
        };
        Self {
            talk: client.talk(&format!("/{package}.ServerReflection/ServerReflectionInfo")),
            question: message("ServerReflectionRequest"),
            answer: message("ServerReflectionResponse"),
        }
    }

    fn ask(&mut self, question: Value) -> DynamicMessage {
        let message = DynamicMessage::deserialize(self.question.clone(), question);
        let message = message.expect("a question");
        self.talk.say(framed(&message.encode_to_vec()));
        let answer = self.talk.hear().expect("an answer");
        let answer = DynamicMessage::decode(self.answer.clone(), answer.as_slice());
        let answer = answer.expect("a message");
        let original = answer.get_field_by_name("original_request");
        let original = original.expect("a field").as_message().cloned();
        assert_eq!(original, Some(message), "the question is in the answer");
        answer
    }

    fn error(&mut self, question: Value) -> Value {
        let answer = self.ask(question);
        serde_json::to_value(answer).expect("JSON")["errorResponse"].take()
    }

    /// The one file of an answer.
    fn file(&mut self, question: Value) -> FileDescriptorProto {
        let answer = serde_json::to_value(self.ask(question.clone())).expect("JSON");
        let response = &answer["fileDescriptorResponse"]["fileDescriptorProto"];
        let files: Vec<String> = serde_json::from_value(response.clone()).expect("files");
        assert_eq!(files.len(), 1, "{question}");
        let field = self.answer.get_field_by_name("file_descriptor_response");
        let kind = field.expect("a field").kind();
        let kind = kind.as_message().expect("a message").clone();
        // JSON has bytes as text, which the library reads best itself.
        let response = json!({ "fileDescriptorProto": files });
        let response = DynamicMessage::deserialize(kind, response).expect("a message");
        let files = response.get_field_by_name("file_descriptor_proto");
        let files = files.expect("a field").into_owned();
        let bytes = files.as_list().expect("a list")[0].as_bytes().cloned();
        FileDescriptorProto::decode(bytes.expect("bytes")).expect("a file")
    }

    /// A file, and all that it needs before it.
    fn files(&mut self, question: Value, pool: &mut DescriptorPool) {
        let file = self.file(question);
        for name in &file.dependency {
            if pool.get_file_by_name(name).is_none() {
                self.files(json!({ "fileByFilename": name }), pool);
            }
        }
        pool.add_file_descriptor_proto(file).expect("a whole file");
    }
}

#[test]
fn a_client_that_knows_only_reflection_calls_every_service() {
    let running = Running::new(TREE, |_| {});
    for (version, code) in VERSIONS.into_iter().zip(["OK", "OVER_LIMIT"]) {
        let mut client = Grpc::to(&running);
        let mut asking = Asking::new(&mut client, version);
        let listed = serde_json::to_value(asking.ask(json!({ "listServices": "" })));
        let listed = listed.expect("JSON")["listServicesResponse"]["service"].take();
        let mut pool = DescriptorPool::new();
        for service in listed.as_array().expect("a list") {
            asking.files(
                json!({ "fileContainingSymbol": service["name"] }),
                &mut pool,
            );
        }
        assert_eq!(pool.services().count(), 4);
        asking.talk.end();
        assert_eq!(asking.talk.hear(), Err(Ok(())));
        let service = "envoy.service.ratelimit.v3.RateLimitService";
        let question = r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}"#;
        let answer = client.call_json(&pool, (service, "ShouldRateLimit"), question);
        assert_eq!(answer.expect("an answer")["overallCode"], code);
        let answer = client.call_json(&pool, ("grpc.health.v1.Health", "Check"), "{}");
        assert_eq!(answer, Ok(json!({"status": "SERVING"})));
    }
}

#[test]
fn what_isnt_there_is_not_found_and_the_conversation_goes_on() {
    let running = Running::new(TREE, |_| {});
    for version in VERSIONS {
        let mut client = Grpc::to(&running);
        let mut asking = Asking::new(&mut client, version);
        for (question, why) in [
            (json!({"fileByFilename": "x.proto"}), "no file \"x.proto\""),
            (json!({"fileContainingSymbol": "a.B"}), "no symbol \"a.B\""),
            (
                json!({"allExtensionNumbersOfType": "grpc.health.v1.Health"}),
                "there are no extensions",
            ),
            (
                json!({"fileContainingExtension": {"containingType": "a.B", "extensionNumber": 7}}),
                "there are no extensions",
            ),
        ] {
            let error = json!({"errorCode": 5, "errorMessage": why});
            assert_eq!(asking.error(question), error);
        }
        assert_eq!(asking.error(json!({}))["errorCode"], 12);
        let file = asking.file(json!({"fileContainingSymbol": ".grpc.health.v1.Health.Check"}));
        assert_eq!(file.name(), "grpc/health/v1/health.proto");
    }
}

#[test]
fn a_conversation_has_bounds() {
    let running = Running::new(TREE, |settings| settings.bounds.request_bytes = 100);
    let mut client = Grpc::to(&running);
    let mut talk = || client.talk("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    // A length that is too much is enough: nobody waits for what it promises.
    for (say, code) in [
        (&[0, 0, 0, 0, 101][..], 8),
        (&[1, 0, 0, 0, 1], 12),
        (&[0, 0, 0, 0, 1, 0xff], 3),
    ] {
        let mut talk = talk();
        talk.say(say.to_vec());
        let ended = talk.hear().expect_err("an end").expect_err("a failure");
        assert_eq!(ended.code, code, "{ended:?}");
    }
    let mut cut = talk();
    cut.say(vec![0, 0, 0]);
    cut.end();
    let why = "the stream ends inside a message".to_owned();
    assert_eq!(cut.hear(), Err(Err(Failed { code: 3, why })));
}

#[test]
fn a_conversation_in_which_nothing_is_said_ends() {
    let running = Running::in_still_time(TREE, |_| {});
    let mut client = Grpc::to(&running);
    let mut talk = || client.talk("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    let question = framed(&[&[4 << 3 | 2, 21][..], b"grpc.health.v1.Health"].concat());
    let slow = |why: &str| {
        let why = why.to_owned();
        Err(Err(Failed { code: 4, why }))
    };
    // The answer to a question tells that what was said behind it was read.
    let mut half = talk();
    half.say([&question[..], &question[..7]].concat());
    half.hear().expect("an answer");
    running.pass(Duration::from_millis(9_999));
    half.say(question.slice(7..9));
    half.say(question.slice(9..));
    half.hear().expect("an answer in time");
    half.say([&question[..], &question[..7]].concat());
    half.hear().expect("an answer");
    running.pass(Duration::from_secs(10));
    assert_eq!(half.hear(), slow("the message wasn't sent within 10 s"));
    let mut silent = talk();
    silent.say(question.clone());
    silent.hear().expect("an answer");
    running.pass(Duration::from_millis(599_999));
    silent.say(question);
    silent.hear().expect("an answer in time");
    running.pass(Duration::from_secs(600));
    assert_eq!(silent.hear(), slow("nothing was asked within 600 s"));
}

#[test]
fn a_message_comes_in_any_parts() {
    let running = Running::new(TREE, |_| {});
    let mut client = Grpc::to(&running);
    let mut talk = client.talk("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    let question = framed(&[&[4 << 3 | 2, 21][..], b"grpc.health.v1.Health"].concat());
    for byte in &question {
        talk.say(vec![*byte]);
    }
    let one = talk.hear().expect("an answer");
    talk.say([&question[..], &question[..]].concat());
    assert_eq!(talk.hear(), Ok(one.clone()));
    assert_eq!(talk.hear(), Ok(one));
}

#[test]
fn buf_curl_calls_by_reflection() {
    let running = Running::new(TREE, |_| {});
    let url = format!("http://{}", running.grpc());
    let curl = |arguments: &[&str]| {
        let run = Command::new(tollgate_testkit::external_programs::buf())
            .args(["curl", "--protocol", "grpc", "--http2-prior-knowledge"])
            .args(arguments)
            .output()
            .expect("buf starts");
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(run.stdout).expect("text")
    };
    let listed = curl(&["--list-methods", &url]);
    assert!(
        listed.contains("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        "{listed}"
    );
    let should = format!("{url}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let question =
        r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}"#;
    for (reflection, code) in [("grpc-v1", "OK"), ("grpc-v1alpha", "OVER_LIMIT")] {
        let answer = curl(&["--reflect-protocol", reflection, "-d", question, &should]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["overallCode"], code, "by {reflection}");
    }
    let health = format!("{url}/grpc.health.v1.Health/Check");
    assert!(curl(&[&health]).contains("SERVING"));
}
