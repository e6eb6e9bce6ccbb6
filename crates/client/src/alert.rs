//! Why a server has ended a TLS handshake, in words.

/// How rustls says that the other side has ended a connection.
const ALERT: &str = "received fatal alert: ";

/// Why a server has ended a handshake, as far as that was for the certificate of this client.
pub(super) fn refused_certificate(cause: &str) -> Option<&'static str> {
    let (_, alert) = cause.split_once(ALERT)?;
    let name = alert.split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    match name {
        "UnknownCA" | "BadCertificate" | "CertificateUnknown" | "CertificateRevoked" => {
            Some("the server does not trust the certificate of this client")
        }
        "CertificateExpired" => Some("the certificate of this client has expired, says the server"),
        "CertificateRequired" => Some("the server wants a certificate of this client"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_server_takes_no_certificate_is_said() {
        let why = |alert: &str| refused_certificate(&format!("received fatal alert: {alert}"));
        let distrusted = "the server does not trust the certificate of this client";
        assert_eq!(why("UnknownCA"), Some(distrusted));
        assert_eq!(why("BadCertificate"), Some(distrusted));
        let expired = "the certificate of this client has expired, says the server";
        assert_eq!(why("CertificateExpired"), Some(expired));
        let wanted = "the server wants a certificate of this client";
        assert_eq!(why("CertificateRequired"), Some(wanted));
        for other in ["HandshakeFailure", "UnsupportedCertificate", ""] {
            assert_eq!(why(other), None, "{other}");
        }
        assert_eq!(refused_certificate("Connection refused"), None);
    }
}
