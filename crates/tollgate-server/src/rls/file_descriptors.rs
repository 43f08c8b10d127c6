//! The protobuf descriptors of the services, for reflection: the files, and the symbols in each.

use std::sync::LazyLock;

use super::protobuf_reader::{FieldReader, FieldValue};

/// A `google.protobuf.FileDescriptorSet`, which `cargo xtask protos` compiles.
static DESCRIPTOR_SET: &[u8] = include_bytes!("descriptors.bin");

/// The descriptors of all files.
pub(crate) static FILES: LazyLock<FileDescriptors> =
    LazyLock::new(|| FileDescriptors::of(DESCRIPTOR_SET));

/// The files, and the services in them.
#[derive(Debug, Default)]
pub(crate) struct FileDescriptors {
    files: Vec<FileDescriptor>,
    services: Vec<String>,
}

#[derive(Debug)]
struct FileDescriptor {
    name: &'static str,
    /// A `google.protobuf.FileDescriptorProto`.
    bytes: &'static [u8],
    /// Full names of its messages, enums, services and methods.
    symbols: Vec<String>,
}

impl FileDescriptors {
    fn of(set: &'static [u8]) -> Self {
        let mut all = Self::default();
        for bytes in messages(set, 1) {
            let package = text(bytes, 2);
            let mut symbols = Vec::new();
            types(bytes, 4, 5, package, &mut symbols);
            for service in messages(bytes, 6) {
                let name = format!("{package}.{}", text(service, 1));
                let methods = messages(service, 2).map(|method| text(method, 1));
                symbols.extend(methods.map(|method| format!("{name}.{method}")));
                symbols.push(name.clone());
                all.services.push(name);
            }
            all.files.push(FileDescriptor {
                name: text(bytes, 1),
                bytes,
                symbols,
            });
        }
        all
    }

    /// A file by its name.
    pub(crate) fn named(&self, name: &str) -> Option<&'static [u8]> {
        let found = self.files.iter().find(|file| file.name == name);
        found.map(|file| file.bytes)
    }

    /// The file of a symbol: a service, a method, a message or an enum.
    pub(crate) fn containing(&self, symbol: &str) -> Option<&'static [u8]> {
        let holds = |file: &&FileDescriptor| file.symbols.iter().any(|own| own == symbol);
        self.files.iter().find(holds).map(|file| file.bytes)
    }

    /// Full names of all services.
    pub(crate) fn services(&self) -> &[String] {
        &self.services
    }
}

/// Collects the full names of messages and enums in these fields, with nested ones.
fn types(
    within: &'static [u8],
    message_field: u64,
    enum_field: u64,
    prefix: &str,
    symbols: &mut Vec<String>,
) {
    for message in messages(within, message_field) {
        let name = format!("{prefix}.{}", text(message, 1));
        types(message, 3, 4, &name, symbols);
        symbols.push(name);
    }
    let enums = messages(within, enum_field).map(|one| text(one, 1));
    symbols.extend(enums.map(|name| format!("{prefix}.{name}")));
}

/// All values of a field. Errors are ignored, as the set is compiled into the program.
fn messages(within: &'static [u8], field: u64) -> impl Iterator<Item = &'static [u8]> {
    FieldReader::of(within)
        .flatten()
        .filter_map(move |one| match one {
            (number, FieldValue::Bytes(bytes)) if number == field => Some(bytes),
            _ => None,
        })
}

fn text(within: &'static [u8], field: u64) -> &'static str {
    let found = messages(within, field).next().unwrap_or_default();
    std::str::from_utf8(found).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_set_describes_every_service() {
        assert_eq!(
            FILES.services(),
            [
                "envoy.service.ratelimit.v3.RateLimitService",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ]
        );
    }

    #[test]
    fn names_lead_to_their_file() {
        let rls = FILES.named("envoy/service/ratelimit/v3/rls.proto");
        assert!(rls.is_some());
        for symbol in [
            "envoy.service.ratelimit.v3.RateLimitService",
            "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit",
            "envoy.service.ratelimit.v3.RateLimitResponse",
            "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit",
        ] {
            assert_eq!(FILES.containing(symbol), rls, "{symbol}");
        }
        assert_eq!(FILES.containing("envoy.service.ratelimit.v3"), None);
        assert_eq!(FILES.named("rls.proto"), None);
        let duration = FILES.named("google/protobuf/duration.proto");
        assert!(duration.is_some());
        assert_eq!(FILES.containing("google.protobuf.Duration"), duration);
    }
}
