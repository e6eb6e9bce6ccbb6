use super::*;

fn evict(seq: u64) -> Command {
    Command::Evict {
        seq: Seq(seq),
        tag: tag(seq),
        evidence: Evidence::Silent { epoch: 0 },
    }
}

#[test]
fn a_batch_is_one_change() {
    let batch = [
        Command::Create(create(3, C)),
        evict(1),
        Command::Create(create(4, C)),
    ];
    let decision = all(&queue(&[A, B]), &batch);
    assert_eq!(decision.state.version, 2);
    let seqs: Vec<u64> = decision.state.entries.iter().map(|e| e.seq.0).collect();
    assert_eq!(seqs, [2, 3, 4]);
}

#[test]
fn a_batch_that_changes_nothing_keeps_the_version() {
    let state = queue(&[A, B]);
    let batch = [Command::Create(create(2, B)), evict(7)];
    let decision = all(&state, &batch);
    assert_eq!(decision.state, state);
    assert_eq!(all(&state, &[]).state, state);
}

#[test]
fn a_refused_command_does_not_keep_the_others_from_their_work() {
    let decision = all(&queue(&[A, B]), &[evict(7), evict(1), evict(1)]);
    assert_eq!(
        decision.outcomes,
        [
            Outcome::Refused(Refusal::NeverIssued),
            Outcome::Evicted { was_holder: true },
            Outcome::Gone(EndedAs::Lost(EndReason::Expired)),
        ]
    );
    assert_eq!(decision.state.head, Seq(2));
}

#[test]
fn two_creates_of_one_request_in_a_batch_make_one_entry() {
    let batch = [Command::Create(create(1, A)), Command::Create(create(1, B))];
    let decision = all(&State::default(), &batch);
    assert_eq!(decision.state.entries.len(), 1);
    assert_eq!(decision.state.holder().map(|e| e.home), Some(A));
}

#[test]
fn each_holder_that_came_and_went_within_a_batch_used_up_a_fence() {
    let decision = all(&queue(&[A, B, C]), &[evict(1), evict(2)]);
    assert_eq!(decision.state.grant, Fence(LATER + 16));
    assert_eq!(decision.state.holder().map(|e| e.seq), Some(Seq(3)));
}
