//! Histories that break one promise each.

use super::history::Rule;
use super::written::bad;

#[test]
fn two_hold_the_key_at_one_time() {
    bad(
        Rule::Exclusivity,
        "a create   #1    0..1  held@10 until:30
         b create   #2    2..3  held@20 until:30
         a release  #1@10 4..5  done",
    );
}

#[test]
fn a_holder_is_replaced_before_its_time_has_passed() {
    bad(
        Rule::Exclusivity,
        "a create   #1    0..1  held@10 until:30
         b create   #2    2..3  done until:40
         b acquire  #2    4..29 held@20 until:40
         a get      #1@10 31..32 refused:over",
    );
}

#[test]
fn a_holder_without_a_promised_time_is_replaced_while_it_works() {
    bad(
        Rule::Exclusivity,
        "a create   #1    0..1  held@10
         b create   #2    2..3  done
         b acquire  #2    4..5  held@20
         a get      #1@10 6..7  =-",
    );
}

#[test]
fn a_late_answer_promises_a_time_in_which_another_one_holds() {
    bad(
        Rule::Exclusivity,
        "a create   #1    0..5  held@10 until:30
         b create   #2    1..3  held@20 until:30",
    );
}

#[test]
fn a_write_shows_that_was_asked_for_after_the_next_holder_was_granted_the_lock() {
    bad(
        Rule::Exclusivity,
        "a create   #1    0..1  held@10 until:10
         a put:x    #1@10 2..3  done until:12
         b create   #2    4..5  done until:60
         b acquire  #2    6..14 held@20 until:60
         a put:y    #1@10 15..16 done until:14
         b get      #2@20 18..19 =y",
    );
}

#[test]
fn a_zombie_writes_over_the_next_holder() {
    bad(
        Rule::Exclusivity,
        "a create   #1    0..1  held@10 until:10
         b create   #2    4..5  done until:90
         b acquire  #2    6..14 held@20 until:90
         b put:x    #2@20 15..16 done until:90
         a put:y    #1@10 17..30 unknown
         b get      #2@20 18..19 =y",
    );
}

#[test]
fn an_acknowledged_write_is_lost() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..5  done
         a release  #1@10 6..7  done
         b create   #2    8..9  held@20
         b get      #2@20 10..11 =x",
    );
}

#[test]
fn the_first_write_of_all_is_lost() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a release  #1@10 4..5  done
         b create   #2    6..7  held@20 =-",
    );
}

#[test]
fn an_acknowledged_write_is_lost_when_its_holder_expires() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10 until:10
         a put:x    #1@10 2..3  done until:12
         b create   #2    4..5  done until:90
         b acquire  #2    6..14 held@20 =- until:90",
    );
}

#[test]
fn an_acknowledged_write_is_lost_by_a_take_over() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10 until:90
         a put:x    #1@10 2..3  done until:90
         a get      #1@10 4..5  refused:superseded
         a acquire  #1    6..7  held@20 until:90
         a get      #1@20 8..9  =-",
    );
}

#[test]
fn a_write_is_lost_within_its_section() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..5  done
         a get      #1@10 6..7  =x",
    );
}

#[test]
fn a_deleted_value_comes_back() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:-    #1@10 4..5  done
         a release  #1@10 6..7  done
         b create   #2    8..9  held@20 =x",
    );
}

#[test]
fn an_unknown_write_shows_and_is_gone_again() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..5  unknown
         a release  #1@10 6..7  done
         b create   #2    8..9  held@20 =y
         b release  #2@20 10..11 done
         c create   #3    12..13 held@30 =x",
    );
}

#[test]
fn an_unknown_write_did_not_show_and_does_later() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..?  unknown
         a release  #1@10 6..7  done
         b create   #2    8..9  held@20 =x
         b get      #2@20 10..11 =y",
    );
}

#[test]
fn an_unknown_write_shows_after_a_later_holder_wrote() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:y    #1@10 4..5  unknown
         a release  #1@10 6..7  done
         b create   #2    8..9  held@20
         b put:z    #2@20 10..11 done
         b release  #2@20 12..13 done
         c create   #3    14..15 held@30 =y",
    );
}

#[test]
fn an_unknown_write_of_an_ordered_client_overtakes_a_later_one() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  unknown in_order
         a put:y    #1@10 4..5  done in_order
         a get      #1@10 6..7  =x",
    );
}

#[test]
fn two_unknown_writes_of_an_ordered_client_show_in_the_wrong_order() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  unknown in_order
         a put:y    #1@10 4..5  unknown in_order
         a get      #1@10 6..7  =y
         a get      #1@10 8..9  =x",
    );
}

#[test]
fn a_refused_put_shows() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a put:x    #1@10 2..3  done
         a put:y    #1@10 4..5  refused
         a get      #1@10 6..7  =y",
    );
}

#[test]
fn a_value_is_read_that_nobody_wrote() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a get      #1@10 2..3  =x",
    );
}

#[test]
fn a_value_is_read_before_it_is_written() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10
         a get      #1@10 2..3  =x
         a put:x    #1@10 4..5  done",
    );
}

#[test]
fn one_whose_time_has_passed_reads_what_nobody_wrote() {
    bad(
        Rule::LatestState,
        "a create   #1    0..1  held@10 until:5
         a get      #1@10 9..10 =x",
    );
}

#[test]
fn a_put_carried_by_a_release_is_lost() {
    bad(
        Rule::LatestState,
        "a create     #1    0..1  held@10
         a release:x  #1@10 2..3  done
         b create     #2    4..5  held@20 =-",
    );
}

#[test]
fn a_fence_falls_from_entry_to_entry() {
    bad(
        Rule::Fences,
        "a create   #1    0..4  held@20
         a release  #1@20 5..6  done
         b create   #2    3..8  held@10",
    );
}

#[test]
fn two_entries_have_one_fence() {
    bad(
        Rule::Fences,
        "a create   #1    0..1  held@10
         a release  #1@10 2..3  done
         b create   #2    4..5  held@10",
    );
}

#[test]
fn the_fence_of_an_entry_falls() {
    bad(
        Rule::Fences,
        "a create   #1    0..1  held@20 until:90
         a acquire  #1    2..3  held@10 until:90",
    );
}

#[test]
fn a_higher_entry_is_told_of_its_fence_first() {
    bad(
        Rule::Fences,
        "a create   #1    0..1  done until:5
         b create   #2    2..3  done until:90
         b acquire  #2    4..6  held@20 until:90
         b release  #2@20 7..8  done
         a acquire  #1    9..10 held@10 until:90",
    );
}

#[test]
fn a_later_create_is_ahead() {
    bad(
        Rule::Order,
        "a create   #2    0..1  done until:2
         b create   #1    3..4  held@10 until:90",
    );
}

#[test]
fn a_seq_is_given_out_twice() {
    bad(
        Rule::Order,
        "a create   #1.1    0..1  done until:9
         b create   #1.2    2..3  done until:9",
    );
}

#[test]
fn one_create_has_two_entries() {
    bad(
        Rule::Order,
        "a create:one  #1    0..1  done until:9
         a create:one  #2    2..3  done until:9",
    );
}

#[test]
fn a_waiter_is_passed_over() {
    bad(
        Rule::Order,
        "a create   #1    0..1  held@10 until:90
         b create   #2    2..3  done until:90
         c create   #3    4..5  done until:90
         a release  #1@10 6..7  done
         c acquire  #3    8..9  held@20 until:90",
    );
}

#[test]
fn a_write_is_taken_after_the_release() {
    bad(
        Rule::End,
        "a create   #1    0..1  held@10
         a release  #1@10 2..3  done
         a put:x    #1@10 4..5  done",
    );
}

#[test]
fn a_read_is_answered_after_the_end_was_told() {
    bad(
        Rule::End,
        "a create   #1    0..1  held@10
         a get      #1@10 2..3  refused:over
         a get      #1@10 4..5  =-",
    );
}

#[test]
fn an_entry_that_has_ended_holds_again() {
    bad(
        Rule::End,
        "a create   #1    0..1  held@10 until:9
         a renew    #1    12..13 refused:over
         a acquire  #1    14..15 held@10 until:90",
    );
}

#[test]
fn a_write_is_taken_under_an_old_grant() {
    bad(
        Rule::End,
        "a create   #1    0..1  held@10 until:90
         a acquire  #1    2..3  held@20 until:90
         a put:x    #1@10 4..5  done until:90",
    );
}
