/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_names.h - put in front of weight sync's own sources when they are tested over the fake group: the group's
 * functions get names of their own, so that the real ones in the library are not in the way.
 */
#ifndef ISTHMUS_TESTS_FAKE_NAMES_H
#define ISTHMUS_TESTS_FAKE_NAMES_H

#define ist_group_info(...) fake_group_info(__VA_ARGS__)
#define ist_group_alloc(...) fake_group_alloc(__VA_ARGS__)
#define ist_group_alloc_free(...) fake_group_alloc_free(__VA_ARGS__)
#define ist_all_gather_bytes(...) fake_all_gather_bytes(__VA_ARGS__)
#define ist_blobs_free(...) fake_blobs_free(__VA_ARGS__)
#define ist_decide(...) fake_decide(__VA_ARGS__)
#define ist_group_split(...) fake_group_split(__VA_ARGS__)
#define ist_group_free(...) fake_group_free(__VA_ARGS__)
#define ist_group_tell(...) fake_group_tell(__VA_ARGS__)
#define ist_group_lost(...) fake_group_lost(__VA_ARGS__)
#define ist_group_mark(...) fake_group_mark(__VA_ARGS__)
#define ist_group_marks(...) fake_group_marks(__VA_ARGS__)
#define ist_group_evict(...) fake_group_evict(__VA_ARGS__)
#define ist_broadcast(...) fake_broadcast(__VA_ARGS__)
#define ist_req_wait(...) fake_req_wait(__VA_ARGS__)
#define ist_req_free(...) fake_req_free(__VA_ARGS__)
#define ist_req_view(...) fake_req_view(__VA_ARGS__)
#define ist__checkpoint_fetch(...) fake_checkpoint_fetch(__VA_ARGS__)

#endif
