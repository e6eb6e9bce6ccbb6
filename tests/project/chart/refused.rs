//! What could not work is refused before it is installed.

use super::super::helm::{self, rendered};
use super::{CASSANDRA, CERT_MANAGER, INSECURE};

#[test]
fn what_a_server_would_refuse_is_refused_with_the_value_to_set() {
    if helm::is_missing() {
        return;
    }
    for (set, why) in [
        (
            "",
            "connections would not be encrypted, and clients would not be known",
        ),
        (
            "auth.tokens.secretName=a",
            "connections would not be encrypted. Set",
        ),
        ("tls.secretName=a", "clients would not be known. Set"),
        (
            "tls.certificate.issuerRef.name=a",
            "clients would not be known. Set",
        ),
        ("tls.clientCa.secretName=a", "only to a server with TLS"),
        (
            "tls.secretName=a,tls.clientCa.secretName=a,tls.clientCa.configMapName=b",
            "not both",
        ),
    ] {
        let refused = rendered("statefulset.yaml", &["--set", set]).unwrap_err();
        assert!(refused.contains(why), "{set}: {refused}");
    }
    for (set, why) in [
        ("config.listen=127.0.0.1:7450", "/config/listen"),
        ("config.http.listen=127.0.0.1:7452", "/config/http/listen"),
        ("config.data_dir=elsewhere", "data_dir"),
        ("config.limits.session_max=5", "session_max"),
        ("config.shutdown_grace=forever", "/config/shutdown_grace"),
        ("mode=other", "/mode"),
        ("replica=3", "replica"),
        ("auth.rules[0].table=t", "/auth/rules/0"),
        (
            "auth.rules[0].who[0]=a,auth.rules[0].table=t,auth.rules[0].allow[0]=lock",
            "for clients that are known",
        ),
        ("autoscaling.enabled=true", "need mode cassandra"),
        (
            "config.store.cassandra.contact_points={a}",
            "mode is embedded",
        ),
        ("mode=cassandra", "name at least one node"),
    ] {
        let more = [&INSECURE[..], &["--set", set]].concat();
        let refused = rendered("statefulset.yaml", &more).unwrap_err();
        assert!(refused.contains(why), "{set}: {refused}");
    }
}

#[test]
fn replicas_need_a_secret_and_encryption() {
    if helm::is_missing() {
        return;
    }
    for (values, set, why) in [
        (CASSANDRA, "peers.secret.secretName=", "all replicas share"),
        (
            CASSANDRA,
            "cassandra.tls.secretName=a",
            "set cassandra.tls.ca as well",
        ),
        (
            CERT_MANAGER,
            "peers.tls.certificate.issuerRef.name=",
            "calls between replicas would not be encrypted",
        ),
    ] {
        let more = ["--values", values, "--set", set];
        let refused = rendered("statefulset.yaml", &more).unwrap_err();
        assert!(refused.contains(why), "{set}: {refused}");
    }
}
