//! Compares two contracts as lists of facts: what was a fact and is no longer breaks somebody.

use std::collections::BTreeMap;

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

/// What became of a contract.
pub struct Changes {
    /// What clients relied on and is gone or different.
    pub broken: Vec<String>,
    /// What was not there before.
    pub added: Vec<String>,
}

/// The parts of a contract by name, fields and enum values by number, each with what is true of it.
type Facts = BTreeMap<String, BTreeMap<&'static str, String>>;

/// What changed from one contract to another.
pub fn compare(from: &FileDescriptorSet, to: &FileDescriptorSet) -> Changes {
    let (from, to) = (facts(from), facts(to));
    let mut broken = Vec::new();
    for (part, was) in &from {
        let Some(is) = to.get(part) else {
            broken.push(format!("{part} is gone ({was:?})"));
            continue;
        };
        for (what, was) in was {
            let is = &is[what];
            if was != is {
                broken.push(format!("{part}: {what} was {was}, is {is}"));
            }
        }
    }
    let added = to.keys().filter(|part| !from.contains_key(*part));
    Changes {
        broken,
        added: added.cloned().collect(),
    }
}

fn facts(set: &FileDescriptorSet) -> Facts {
    let mut facts = Facts::new();
    for file in &set.file {
        let package = file.package();
        for message in &file.message_type {
            add_message(&mut facts, package, message);
        }
        for declared in &file.enum_type {
            add_enum(&mut facts, package, declared);
        }
        for service in &file.service {
            add_service(&mut facts, package, service);
        }
    }
    facts
}

fn add_message(facts: &mut Facts, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    facts.insert(format!("message {name}"), BTreeMap::new());
    for field in &message.field {
        facts.insert(
            format!("field {} of {name}", field.number()),
            field_facts(message, field),
        );
    }
    for inner in &message.nested_type {
        add_message(facts, &name, inner);
    }
    for inner in &message.enum_type {
        add_enum(facts, &name, inner);
    }
}

fn field_facts(
    message: &DescriptorProto,
    field: &FieldDescriptorProto,
) -> BTreeMap<&'static str, String> {
    let optional = field.proto3_optional();
    // A field marked `optional` has a oneof of its own, which is no fact of the contract.
    let oneof = field
        .oneof_index
        .filter(|_| !optional)
        .and_then(|at| message.oneof_decl.get(usize::try_from(at).ok()?))
        .map_or("none", |oneof| oneof.name());
    BTreeMap::from([
        ("name", field.name().to_owned()),
        ("JSON name", field.json_name().to_owned()),
        (
            "type",
            format!("{:?} {}", field.r#type(), field.type_name()),
        ),
        ("label", format!("{:?}", field.label())),
        ("optional", optional.to_string()),
        ("oneof", oneof.to_owned()),
    ])
}

fn add_enum(facts: &mut Facts, scope: &str, declared: &EnumDescriptorProto) {
    let name = format!("{scope}.{}", declared.name());
    facts.insert(format!("enum {name}"), BTreeMap::new());
    for value in &declared.value {
        facts.insert(
            format!("value {} of {name}", value.number()),
            BTreeMap::from([("name", value.name().to_owned())]),
        );
    }
}

fn add_service(facts: &mut Facts, scope: &str, service: &ServiceDescriptorProto) {
    let name = format!("{scope}.{}", service.name());
    facts.insert(format!("service {name}"), BTreeMap::new());
    for rpc in &service.method {
        facts.insert(
            format!("rpc {} of {name}", rpc.name()),
            BTreeMap::from([
                ("request", rpc.input_type().to_owned()),
                ("response", rpc.output_type().to_owned()),
                ("request stream", rpc.client_streaming().to_string()),
                ("response stream", rpc.server_streaming().to_string()),
            ]),
        );
    }
}

#[cfg(test)]
mod tests {
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{EnumValueDescriptorProto, FileDescriptorProto, OneofDescriptorProto};

    use super::*;

    fn field(name: &str, number: i32) -> FieldDescriptorProto {
        FieldDescriptorProto {
            name: Some(name.into()),
            json_name: Some(name.into()),
            number: Some(number),
            r#type: Some(Type::String.into()),
            label: Some(Label::Optional.into()),
            ..Default::default()
        }
    }

    /// A contract with one of everything.
    fn contract() -> FileDescriptorSet {
        let message = DescriptorProto {
            name: Some("Ask".into()),
            field: vec![
                field("plain", 1),
                FieldDescriptorProto {
                    oneof_index: Some(0),
                    ..field("chosen", 2)
                },
            ],
            oneof_decl: vec![OneofDescriptorProto {
                name: Some("choice".into()),
                ..Default::default()
            }],
            nested_type: vec![DescriptorProto {
                name: Some("Inner".into()),
                field: vec![field("deep", 1)],
                ..Default::default()
            }],
            ..Default::default()
        };
        let value = |name: &str, number| EnumValueDescriptorProto {
            name: Some(name.into()),
            number: Some(number),
            ..Default::default()
        };
        let declared = EnumDescriptorProto {
            name: Some("Kind".into()),
            value: vec![value("ZERO", 0), value("ONE", 1)],
            ..Default::default()
        };
        let rpc = prost_types::MethodDescriptorProto {
            name: Some("Do".into()),
            input_type: Some(".t.Ask".into()),
            output_type: Some(".t.Ask".into()),
            ..Default::default()
        };
        let service = ServiceDescriptorProto {
            name: Some("Serve".into()),
            method: vec![rpc],
            ..Default::default()
        };
        FileDescriptorSet {
            file: vec![FileDescriptorProto {
                package: Some("t".into()),
                message_type: vec![message],
                enum_type: vec![declared],
                service: vec![service],
                ..Default::default()
            }],
        }
    }

    /// A way to break the contract, and what must be said of it.
    type Break = (fn(&mut FileDescriptorProto), &'static str);

    const BREAKS: &[Break] = &[
        (|f| f.message_type.clear(), "message t.Ask is gone"),
        (
            |f| f.message_type[0].nested_type[0].field[0].set_type(Type::Bytes),
            "field 1 of t.Ask.Inner: type",
        ),
        (
            |f| drop(f.message_type[0].field.remove(0)),
            "field 1 of t.Ask is gone",
        ),
        (
            |f| f.message_type[0].field[0].name = Some("other".into()),
            "field 1 of t.Ask: name",
        ),
        (
            |f| f.message_type[0].field[0].json_name = Some("other".into()),
            "field 1 of t.Ask: JSON name",
        ),
        (
            |f| f.message_type[0].field[0].set_label(Label::Repeated),
            "field 1 of t.Ask: label",
        ),
        (
            |f| f.message_type[0].field[0].proto3_optional = Some(true),
            "field 1 of t.Ask: optional",
        ),
        (
            |f| f.message_type[0].field[0].oneof_index = Some(0),
            "field 1 of t.Ask: oneof was none, is choice",
        ),
        (
            |f| drop(f.enum_type[0].value.pop()),
            "value 1 of t.Kind is gone",
        ),
        (
            |f| f.enum_type[0].value[1].name = Some("UNO".into()),
            "value 1 of t.Kind: name",
        ),
        (|f| f.service[0].method.clear(), "rpc Do of t.Serve is gone"),
        (
            |f| f.service[0].method[0].input_type = Some(".t.Other".into()),
            "rpc Do of t.Serve: request was",
        ),
        (
            |f| f.service[0].method[0].server_streaming = Some(true),
            "rpc Do of t.Serve: response stream",
        ),
        (|f| f.package = Some("u".into()), "message t.Ask is gone"),
    ];

    #[test]
    fn each_way_to_break_a_client_is_found() {
        for (change, expected) in BREAKS {
            let mut changed = contract();
            change(&mut changed.file[0]);
            let found = compare(&contract(), &changed).broken;
            assert!(
                found.iter().any(|found| found.contains(expected)),
                "{expected}: {found:?}"
            );
        }
    }

    #[test]
    fn growing_breaks_nobody() {
        let mut grown = contract();
        let file = &mut grown.file[0];
        file.message_type[0].field.push(field("more", 3));
        file.message_type.push(DescriptorProto {
            name: Some("More".into()),
            ..Default::default()
        });
        let changes = compare(&contract(), &grown);
        assert_eq!(changes.broken, Vec::<String>::new());
        assert_eq!(changes.added, ["field 3 of t.Ask", "message t.More"]);
    }
}
